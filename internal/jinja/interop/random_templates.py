"""Renders random templates with Python: random_templates.py OUT COUNT SEED.

They are made of the names, constructs, filters, tests and methods that the engine
knows, combined without regard for types, so about half of them are errors. Writes
OUT/random.jsonl, one line a template.
"""

import copy
import json
import pathlib
import random
import re
import signal
import sys
import warnings

import reference

VARS = json.loads((pathlib.Path(__file__).parent.parent / "testdata" / "vars.json").read_text())
NAMES = [*VARS, "undef", "x", "y", "loop"]
LITERALS = [
    "0", "1", "2", "-1", "3", "7", "10", "1.5", "2.0", "-0.5", "1e3", "1e22", "1e-7", "100000000000000000000", "true", "false", "none",
    "''", "'a'", "'b'", "'abc'", "'A b'", "' x '", "'é🎉'", "'a,b,c'", "'%s'", "'%d|%s'", "'{}'", "'{0}-{0}'", "'\\n'", "'1'", "'4.5'", "'<b>'", "\"it's\"",
    "[]", "[1, 2]", "['a', 'b']", "[[1, 'a'], [2, 'b']]", "{}", "{'a': 1}", "{'b': 2, 'a': 1}", "{1: 'x'}", "()", "(1,)", "(1, 'a')", "range(3)", "dict(a=1)", "'x'|safe", "[none]",
]
FILTERS = [
    "abs", "attr('name')", "batch(2)|list", "batch(2, 0)|list", "capitalize", "center(7)", "count", "d", "default('d')", "default('d', true)", "dictsort",
    "dictsort(true)", "dictsort(by='value')", "e", "escape", "first", "float", "float(1.5)", "forceescape", "format(1)", "format('a', 2)", "groupby('age')|list",
    "indent", "indent(2, true)", "int", "int(5)", "int(base=16)", "items|list", "join", "join(', ')", "join(attribute='name')", "last", "length", "list",
    "lower", "map('upper')|list", "map(attribute='name')|list", "map('string')|list", "max", "min", "reject('string')|list", "rejectattr('on')|list",
    "replace('a', 'b')", "replace('', '-')", "replace(1, 2)", "reverse|list", "reverse|join", "round", "round(1)", "round(1, 'floor')", "safe", "select|list", "select('number')|list",
    "select('odd')|list", "selectattr('on')|list", "selectattr('age', 'gt', 26)|list", "slice(2)|list", "sort", "sort(reverse=true)", "sort(attribute='name')", "sort(case_sensitive=true)",
    "string", "sum", "title", "tojson", "tojson(indent=2)", "tojson(ensure_ascii=true)", "tojson(sort_keys=true)", "trim", "trim('a')", "truncate(5, true, '.', 0)", "unique|list", "upper", "urlencode", "wordcount",
]
TESTS = [
    "defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "string", "mapping", "sequence", "iterable", "callable", "odd", "even",
    "divisibleby(2)", "lower", "upper", "in [1, 'a']", "eq 1", "ne 'a'", "gt 1", "le 2", "escaped", "sameas none",
]
ATTRIBUTES = ["a", "b", "name", "age", "items", "get", "keys", "_private", "0", "missing", "pop", "append", "upper"]
METHODS = [
    "upper()", "lower()", "title()", "capitalize()", "swapcase()", "strip()", "lstrip('a')", "rstrip()", "strip('ab')", "split()", "split(',')", "split(',', 1)", "rsplit(',', 1)", "splitlines()",
    "startswith('a')", "endswith('b')", "startswith(('a', 'b'))", "find('b')", "rfind('a')", "index('a')", "count('a')", "replace('a', 'b')", "replace('a', 'b', 1)", "join(['a', 'b'])", "join(strs)",
    "partition(',')", "rpartition(',')", "center(7, '*')", "ljust(4)", "rjust(4)", "zfill(5)", "removeprefix('a')", "removesuffix('c')", "isdigit()", "isalpha()", "isspace()", "isupper()", "istitle()", "expandtabs()",
    "format(1)", "format('a', 2)", "format(a=1)", "get('a')", "get('a', 1)", "keys()", "values()", "items()", "keys()|list", "items()|list", "copy()", "count(1)", "index(1)", "append(1)", "pop()", "update({})",
]
OPERATORS = ["+", "+", "+", "-", "*", "/", "//", "%", "~", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]


class Maker:
    def __init__(self, rng):
        self.rng = rng

    def pick(self, options):
        return self.rng.choice(options)

    def expr(self, depth=3):
        r = self.rng.random()
        if depth <= 0 or r < 0.25:
            return self.pick(LITERALS) if self.rng.random() < 0.5 else self.pick(NAMES)
        sub = lambda: self.expr(depth - 1)  # noqa: E731
        if r < 0.45:
            return f"({sub()})|{self.pick(FILTERS)}"
        if r < 0.58:
            return f"({sub()}).{self.pick(METHODS)}"
        if r < 0.75:
            return f"({sub()} {self.pick(OPERATORS)} {sub()})"
        if r < 0.80:
            return f"({sub()} is {self.pick(['', 'not '])}{self.pick(TESTS)})"
        if r < 0.84:
            return f"({sub()}).{self.pick(ATTRIBUTES)}"
        if r < 0.88:
            if self.rng.random() < 0.5:  # of names only: jinja2 folds slices of constants to undefined
                return f"{self.pick(NAMES)}[{self.pick(['1:', ':-1', '::-1', '::2', '1:3', '5:', ':0:-2'])}]"
            return f"({sub()})[{self.pick(['0', '-1', '5', repr(self.pick(ATTRIBUTES)), sub()])}]"
        if r < 0.91:
            return f"({sub()} if {sub()} else {sub()})"
        if r < 0.93:
            return f"({sub()} if {sub()})"
        if r < 0.96:
            return f"{self.pick(['not ', '-', ''])}({sub()})"
        if r < 0.98:
            return f"[{sub()}, {sub()}]"
        return "{" + f"{sub()}: {sub()}" + "}"

    def body(self, depth):
        return "".join(self.statement(depth - 1) for _ in range(self.rng.randint(1, 3)))

    def dash(self):
        return self.pick(["", "", "", "-", "+"])

    def tag(self, text):
        return "{%" + self.dash() + " " + text + " " + self.pick(["", "", "-"]) + "%}"

    def statement(self, depth=3):
        r = self.rng.random()
        if r < 0.15 or depth <= 0:
            return self.pick(["text ", "\n", "  \n  ", " a\n", "{", "\t", "# %", "é\n\n"])
        if r < 0.5:
            return "{{" + self.pick(["", "", "-"]) + " " + self.expr() + " " + self.pick(["", "", "-"]) + "}}"
        name = self.pick(["x", "y", "name", "list", "q"])
        if r < 0.58:
            return self.tag(f"set {name} = {self.expr(2)}")
        if r < 0.62:
            return self.tag(f"set {name}{self.pick(['', '|upper', '|trim'])}") + self.body(depth) + self.tag("endset")
        if r < 0.66:
            return self.tag("set ns = namespace(v=0)") + self.body(depth) + self.tag(f"set ns.v = {self.expr(1)}") + "{{ ns.v }}"
        if r < 0.74:
            middle = self.pick(["", self.tag("else") + self.body(depth), self.tag(f"elif {self.expr(1)}") + self.body(depth)])
            return self.tag(f"if {self.expr(2)}") + self.body(depth) + middle + self.tag("endif")
        if r < 0.87:
            seq = self.pick(["list", "strs", "users", "mixed", "nested", "nested.items()", "range(3)", "'aé'", "undef", "[]", self.expr(1)])
            target = self.pick(["x", "x", "x", "y", "x, y"])
            test = self.pick(["", "", "", f" if {self.expr(1)}", " if x"])
            extra = self.pick(["", "{{ loop.index }}", "{{ loop.last }}{{ loop.nextitem }}", "{{ loop.length }}", "{{ loop.previtem }}", "{% if loop.first %}{% continue %}{% endif %}", "{% if loop.index == 2 %}{% break %}{% endif %}"])
            other = self.pick(["", "", self.tag("else") + self.body(depth)])
            return self.tag(f"for {target} in {seq}{test}") + extra + self.body(depth) + other + self.tag("endfor")
        if r < 0.92:
            args = self.pick(["", "x", "x, y=1", "x=2, y=x"])
            use = self.pick(["{{ m() }}", "{{ m(1) }}", "{{ m(1, 2)|upper }}", "{{ m(y=3) ~ 'z' }}", "{% call m() %}c{% endcall %}"])
            return self.tag(f"macro m({args})") + self.body(depth) + self.pick(["", "{{ caller() }}", "{{ varargs }}"]) + self.tag("endmacro") + use
        if r < 0.95:
            return self.tag(f"filter {self.pick(['upper', 'trim', 'indent(2)', 'length', 'e'])}") + self.body(depth) + self.tag("endfilter")
        if r < 0.97:
            return self.tag(f"with {name} = {self.expr(1)}") + self.body(depth) + self.tag("endwith")
        return self.pick(["{# c #}", "{#- c -#}", "{% raw %} {{ x }} {% endraw %}", self.tag("generation") + self.body(depth) + self.tag("endgeneration")])


def expired(*_):
    raise TimeoutError


def main(out, count, seed):
    env = reference.environment()
    rendered = failed = 0
    warnings.simplefilter("ignore")  # of the code that jinja2 generates
    signal.signal(signal.SIGALRM, expired)
    with open(pathlib.Path(out) / "random.jsonl", "w") as lines:
        for i in range(int(count)):
            maker = Maker(random.Random(int(seed) * 1_000_003 + i))
            source = "".join(maker.statement() for _ in range(maker.rng.randint(1, 3)))
            signal.alarm(5)
            text, error = reference.render(env, source, copy.deepcopy(VARS))  # indent changes lists
            signal.alarm(0)
            if text and re.search("0x[0-9a-f]{8}", text.lower()):
                continue  # an address
            rendered, failed = rendered + (not error), failed + bool(error)
            line = {"source": source}
            line.update({"error": error} if error else {"text": text})
            lines.write(json.dumps(line) + "\n")
    print(f"python: {rendered} random templates rendered, {failed} errors (seed {seed})")


main(*sys.argv[1:])
