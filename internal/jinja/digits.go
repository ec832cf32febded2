package jinja

import (
	"strings"
	"unicode"
)

// digitRanges are the characters that are digits but not decimal ones, such as
// superscripts (Numeric_Type=Digit of Unicode 15).
var digitRanges = [...][2]rune{
	{0xb2, 0xb3}, {0xb9, 0xb9}, {0x1369, 0x1371}, {0x19da, 0x19da}, {0x2070, 0x2070}, {0x2074, 0x2079},
	{0x2080, 0x2089}, {0x2460, 0x2468}, {0x2474, 0x247c}, {0x2488, 0x2490}, {0x24ea, 0x24ea}, {0x24f5, 0x24fd},
	{0x24ff, 0x24ff}, {0x2776, 0x277e}, {0x2780, 0x2788}, {0x278a, 0x2792}, {0x10a40, 0x10a43},
	{0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a},
}

// numericLetters are the letters that have a numeric value, mostly of Chinese.
const numericLetters = "㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅卌叁参參叄四壱壹幺廾廿弌弍" +
	"弎弐拾捌柒漆玖百肆萬貮貳贰阡陆陌陸零參拾兩零六陸什" +
	"\U00020001\U00020064\U000200e2\U00020121\U0002092a\U00020983\U0002098c\U0002099c\U00020aea\U00020afd\U00020b19\U00022390\U00022998\U00023b1b\U0002626d\U0002f890"

// isDigit is str.isdigit for one character.
func isDigit(r rune) bool {
	for _, d := range digitRanges {
		if r >= d[0] && r <= d[1] {
			return true
		}
	}
	return unicode.Is(unicode.Nd, r)
}

// isNumeric is str.isnumeric for one character.
func isNumeric(r rune) bool { return unicode.IsNumber(r) || strings.ContainsRune(numericLetters, r) }
