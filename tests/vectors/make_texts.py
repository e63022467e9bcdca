#!/usr/bin/env python3
"""Writes texts.json: the texts whose tokens are compared.  Deterministic; see README.md beside this file."""
import json
import os
import random

HERE = os.path.dirname(os.path.abspath(__file__))

CODE = [
    "def f(x):\n    return x + 1\n",
    "def add(a: int, b: int) -> int:\n\treturn a+b\n",
    "for i in range(10):\n  print(i, end='')\n",
    "x = [i**2 for i in range(100) if i % 3 == 0]\n",
    "class A(B):\n    def __init__(self, *args, **kwargs):\n        super().__init__(*args, **kwargs)\n",
    "if __name__ == \"__main__\":\n    main()\n",
    "s = f\"{x!r:>10} {y:.3f}\"\n",
    "lambda x, y=2, *a, **k: (x, y)\n",
    "try:\n    pass\nexcept (ValueError, TypeError) as e:\n    raise RuntimeError(\"bad\") from e\n",
    "@dataclass(frozen=True)\nclass P:\n    x: int = 0\n",
    "import numpy as np\nnp.zeros((3, 4), dtype=np.float32)[:, ::-1]\n",
    "assert f([1, 2, 3]) == 6, \"sum\"\n",
    "#include <stdio.h>\nint main(void) { printf(\"%d\\n\", 42); return 0; }\n",
    "SELECT * FROM t WHERE a >= 10 AND b IS NOT NULL;\n",
    "<div class=\"a\"><!-- c --><p>Hi &amp; bye</p></div>\n",
    "{\"a\": [1, 2.5e-3, null, true], \"b\": \"\\u00e9\"}\n",
    "fn main() { let v: Vec<u8> = vec![0; 16]; println!(\"{:?}\", v); }\n",
    "a->b->c; a::b::c; a?.b?.[0]; a ??= b; a <<= 2; a >>>= 3; !!x; x--; ++y;\n",
    "$ ls -la | grep -E '^d' && echo \"done\" > /dev/null 2>&1\n",
    "\tif (x) {\r\n\t\treturn;\r\n\t}\r\n",
    "    \"\"\"Check if in given list of numbers, are any two numbers closer to each other than\n    given threshold.\n"
    "    >>> has_close_elements([1.0, 2.0, 3.0], 0.5)\n    False\n    \"\"\"\n",
    "```python\nprint('hi')\n```\n",
    "x=1;y=2;z=x+y*3//4%5**6&7|8^9~0",
    "0x1F 0b1010 0o17 1_000_000 1e10 3.14159 .5 5. 1j 10L",
    "camelCaseName snake_case_name SCREAMING_SNAKE kebab-case-name PascalCase _private __dunder__",
    "https://example.com/path/to?q=1&r=a%20b#frag user@example.org C:\\Users\\me\\x.txt /usr/lib/x.so.1",
]

PROSE = [
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "It's what we've got; they're sure I'd say I'm the one who'll win, but he can't.",
    "IT'S WHAT WE'VE GOT; THEY'RE SURE I'D SAY I'M THE ONE WHO'LL WIN",
    "It's It'S iT's 'sx 'tx 'rex 'vex 'mx 'llx 'dx 'S 'T 'RE 'VE 'M 'LL 'D 'Re 'vE 'lL",
    "don't won't it''s '''s 's's 'll'll ' s ' t",
    "“Curly quotes” and ‘single ones’ — it’s fine… isn’t it?",
    "Mr. Smith paid $1,234.56 (about €1.100,00) on 12/31/1999 at 11:59 p.m.",
    "A sentence.Another without space.And.more",
    "word " * 20,
    "supercalifragilisticexpialidocious antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "Yes!!! No??? Wow?! Hmm... -- --- ---- *** ### === ~~~ ___ <<>> ((())) [[[]]] {{{}}}",
    "1. First\n2. Second\n   - nested\n   - list\n\n> quote\n\n# Title\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",
]

DIGITS = [
    "0", "12", "123", "1234", "12345678901234567890", "3.14159265358979", "1,000,000", "v1.2.3-rc4", "a1b2c3",
    "2024-12-31T23:59:59Z", "+1 (555) 123-4567", "007", "１２３", "٣٤٥", "²³¹", "½ ¾ ⅓", "Ⅳ Ⅻ", "①②③", "१२३४", "x² + y³ = z⁴",
    "100%", "$5", "#1", "No.5", "5th 1st 2nd", "4 4  4   4", "1\n2\n3", "1 000 000",
]

SPACE = [
    "", " ", "  ", "   ", "    ", "        ", " " * 17, " " * 100, "\n", "\n\n", "\n\n\n\n\n", "\t", "\t\t\t", " \t \t ", "\r\n", "\r\n\r\n", "\r", "\n \n",
    " \n", "\n ", "  \n  \n  x", "a ", " a", "  a", "   a", "a  b", "a   b", "a\n\n\n b", "a \n b", "a\t\tb", "\n\n    x", "x    \n", "x\n    \n    y\n",
    "a\u00a0b", "\u00a0\u00a0x", "a\u3000b", "a\u2003b\u2003\u2003c", "\u2028x\u2029y", "\u0085z", "\u1680\u2000\u200a\u202f\u205f", "a\u200bb",
    "a\u180eb", "\u180e\u180e x", " \u180e \u180ex", "\ufeffx", "a\x0bb\x0cc", "\x1c\x1d\x1e\x1f", "  \u00a0 \t x", "if x:\n\n\n        pass\n\n\n\n",
]

UNICODE = [
    "café naïve façade Zürich Ærøskøbing Škoda łódź", "cafe\u0301 nai\u0308ve", "e\u0301\u0302\u0303", "Å\u030a \u212b Å", "ﬁ ﬂ ﬀ",
    "Привет, мир! Как дела?", "Γειά σου Κόσμε", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया", "สวัสดีชาวโลก", "你好，世界！今天天气怎么样？",
    "こんにちは世界。カタカナとひらがな", "안녕하세요 세계", "繁體中文與简体中文", "Việt Nam đẹp lắm", "ქართული ენა", "Հայերեն", "አማርኛ", "ខ្មែរ", "தமிழ்", "తెలుగు",
    "😀", "😀😃😄", "👩‍👩‍👧‍👦 family", "🇩🇪🇫🇷", "👍🏽", "❤️ ☃ ☂", "a😀b 😀 c", "→ ← ⇒ ∀x∈ℝ ∃y: x≤y ∧ y≠0", "∑∏∫√∞≈±×÷", "αβγδε ΑΒΓΔΕ", "𝒜𝓑𝔘 𝟘𝟙𝟚",
    "𐍈𐌰𐌽", "\U0001F1E6\U0001F1E7", "½ cup", "№ 5 ™ ® © § ¶", "¡Hola! ¿Qué tal?", "«guillemets»", "\u200e\u200fLTR RTL", "\ufdd0\ufdd1\ufdd2 nonchar", "\ufffd\ufffe",
    "\U0010ffff\U000f0000", "it\u017f \u017fx 'ſ 'K \u212a", "ß ẞ ŉ ǅ ǆ", "İ ı i I", "ʼs ʼt", "zero\u200dwidth\u200cjoin", "a\u0300\u0301\u0302\u0303\u0304b",
    "ก็", "क्षत्रिय", "각각 ᄀ ᅡ ᆨ", "\u1100\u1161\u11a8", "ｆｕｌｌｗｉｄｔｈ　ＴＥＸＴ１２３",
]

SPECIAL = [
    "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|endoftext|><|endoftext|>", "a<|im_end|>b", " <|im_end|> ",
    "<|im_end|", "<|im_end", "|im_end|>", "<|im_ end|>", "< |im_end|>", "<<|im_end|>>", "<|IM_END|>", "<|im_end|>>", "<tool_call>\n{}\n</tool_call>", "x<tool_call>y",
    "<tool_call", "</tool_call>x", "<|fim_prefix|>def f(<|fim_suffix|>)<|fim_middle|>", "<|file_sep|><|repo_name|>", "<|vision_start|><|image_pad|><|vision_end|>",
    "<repo_name>a/b<file_sep>x.py", "<filename><gh_stars><issue_start>", "<jupyter_code>1+1<jupyter_output>2<empty_output>", "[PAD151665]", "<s></s><unk><pad>",
    "[INST] hi [/INST]", "<|eot_id|><|start_header_id|>system<|end_header_id|>", "\u0120hello \u010a", "Ġ Ċ ĉ", "<0x0A>", "▁the ▁of", "<think>\nhm\n</think>\n",
]

RUNS = [
    "a" * 300, "ab" * 200, "A" * 127, "é" * 100, "日" * 90, "😀" * 40, "!" * 99, "=" * 80, "-" * 80, "." * 64, "0" * 50, "x " * 60, "\n" * 60, "\t" * 40, " \n" * 40,
    "aaaaabbbbbcccccdddddeeeee" * 8, "()" * 50, "/" * 33, "\\" * 33, "'" * 33, "\"\"\"" * 11, "_" * 77, "# " * 30, "lol" * 55,
]

CONTROL = ["a\x00b", "\x01\x02\x03", "\x1b[31mred\x1b[0m", "\x7f", "\x80\x9f", "bell\x07", "\x04\x06\x13\x14\x16\x1d", "a\x04b", "\x00" * 8]


def random_texts():
    rng = random.Random(20240817)
    alphabets = [
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ      \n\t'", "0123456789 .,-+eE", " \t\n\r\u00a0\u3000\u2003x", "'sStTrReEvVmMlLdD ",
        "(){}[]<>|_-+*/=!&^%$#@~`\"'\\;:?,. ", "äöüßéèêàçñøåæœÿ ", "абвгдежзийклмн ", "日本語中文字漢 。、", "אבגד مرحبا", "😀🎉👍🏽\u200d❤️ ", "e\u0301a\u0308n\u0303 ", "<|im_end>startfox/ ",
    ]
    out = ["".join(rng.choice(a) for _ in range(rng.randint(3, 60))) for a in alphabets for _ in range(4)]
    mixed = "".join(alphabets)
    out += ["".join(rng.choice(mixed) for _ in range(rng.randint(20, 120))) for _ in range(16)]
    for _ in range(24):  # any assigned-looking code point: letters of Unicode 14 and older only
        blocks = [(0x20, 0x7E), (0xA0, 0x24F), (0x250, 0x36F), (0x370, 0x52F), (0x5D0, 0x6FF), (0x900, 0xD7F), (0xE01, 0xE5B), (0x1E00, 0x1FFE), (0x2010, 0x2BFF),
                  (0x3041, 0x30FF), (0x4E00, 0x9FFC), (0xAC00, 0xD7A3), (0xFF01, 0xFFDC), (0x1D400, 0x1D7FF), (0x1F300, 0x1F64F)]
        out.append("".join(chr(rng.randint(*rng.choice(blocks))) for _ in range(rng.randint(5, 40))))
    return out


def main():
    texts = CODE + PROSE + DIGITS + SPACE + UNICODE + SPECIAL + RUNS + CONTROL + random_texts()
    with open(os.path.join(HERE, "texts.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(t) for t in texts) + "\n]\n")
    print(len(texts), "texts")


if __name__ == "__main__":
    main()
