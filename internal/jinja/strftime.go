package jinja

import (
	"strconv"
	"time"
)

// appendTime appends t as strftime of glibc does in the C locale for a time without
// zone: the numbers with flags -, _ and 0, names with ^.
func appendTime(dst []byte, format string, t time.Time) []byte {
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 >= len(format) {
			dst = append(dst, format[i])
			continue
		}
		start := i
		flag := byte(0)
		if i++; i+1 < len(format) && (format[i] == '-' || format[i] == '_' || format[i] == '0' || format[i] == '^') {
			flag = format[i]
			i++
		}
		var ok bool
		if dst, ok = appendTimeField(dst, format[i], flag, t); !ok {
			dst = append(dst, format[start:i+1]...)
		}
	}
	return dst
}

func appendTimeField(dst []byte, c, flag byte, t time.Time) ([]byte, bool) {
	if n, width, pad, ok := timeNumber(c, t); ok {
		return appendPadded(dst, n, width, pad, flag), true
	}
	text := ""
	switch c {
	case 'a':
		text = t.Format("Mon")
	case 'A':
		text = t.Weekday().String()
	case 'b', 'h':
		text = t.Format("Jan")
	case 'B':
		text = t.Month().String()
	case 'p':
		text = t.Format("PM")
	case 'P':
		text = t.Format("pm")
	case 'z', 'Z':
	case 'n':
		text = "\n"
	case 't':
		text = "\t"
	case '%':
		text = "%"
	case 'c':
		return appendTime(dst, "%a %b %e %H:%M:%S %Y", t), true
	case 'D', 'x':
		return appendTime(dst, "%m/%d/%y", t), true
	case 'F':
		return appendTime(dst, "%Y-%m-%d", t), true
	case 'R':
		return appendTime(dst, "%H:%M", t), true
	case 'T', 'X':
		return appendTime(dst, "%H:%M:%S", t), true
	case 'r':
		return appendTime(dst, "%I:%M:%S %p", t), true
	default:
		return dst, false
	}
	if flag == '^' {
		text = upper(text)
	}
	return append(dst, text...), true
}

// timeNumber returns the number that a letter stands for, its width and its filler.
func timeNumber(c byte, t time.Time) (n, width int, pad byte, ok bool) {
	isoYear, isoWeek := t.ISOWeek()
	sunday := int(t.Weekday())
	monday := (sunday + 6) % 7
	hour12 := (t.Hour()+11)%12 + 1
	pad, ok = '0', true
	switch c {
	case 'd':
		n, width = t.Day(), 2
	case 'e':
		n, width, pad = t.Day(), 2, '_'
	case 'm':
		n, width = int(t.Month()), 2
	case 'y':
		n, width = t.Year()%100, 2
	case 'Y':
		n, width = t.Year(), 1
	case 'C':
		n, width = t.Year()/100, 2
	case 'G':
		n, width = isoYear, 1
	case 'g':
		n, width = isoYear%100, 2
	case 'H':
		n, width = t.Hour(), 2
	case 'k':
		n, width, pad = t.Hour(), 2, '_'
	case 'I':
		n, width = hour12, 2
	case 'l':
		n, width, pad = hour12, 2, '_'
	case 'M':
		n, width = t.Minute(), 2
	case 'S':
		n, width = t.Second(), 2
	case 'f':
		n, width = t.Nanosecond()/1000, 6
	case 'j':
		n, width = t.YearDay(), 3
	case 'w':
		n, width = sunday, 1
	case 'u':
		n, width = monday+1, 1
	case 'U':
		n, width = (t.YearDay()+6-sunday)/7, 2
	case 'W':
		n, width = (t.YearDay()+6-monday)/7, 2
	case 'V':
		n, width = isoWeek, 2
	case 's':
		n, width = int(t.Unix()), 1
	default:
		ok = false
	}
	return n, width, pad, ok
}

func appendPadded(dst []byte, n, width int, pad, flag byte) []byte {
	if flag == '_' || flag == '0' {
		pad = flag
	}
	if pad == '_' {
		pad = ' '
	}
	text := strconv.Itoa(n)
	for i := len(text); i < width && flag != '-'; i++ {
		dst = append(dst, pad)
	}
	return append(dst, text...)
}
