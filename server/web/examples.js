// Tasks to begin with, in several formats of tests.
export const EXAMPLES = [
  {
    name: "Rotate a list (check function)",
    format: "humaneval", entry: "rotate", candidates: 32,
    prompt: "Write a Python function `rotate(items, k)` that returns a new list with the items rotated to the right by k "
      + "places. k may be larger than the list, and the list may be empty. Answer with the function only: no docstring, no "
      + "examples.",
    tests: `def check(candidate):
    assert candidate([1, 2, 3, 4], 1) == [4, 1, 2, 3]
    assert candidate([1, 2, 3, 4], 6) == [3, 4, 1, 2]
    assert candidate(["a", "b"], 0) == ["a", "b"]
    assert candidate([], 3) == []
`,
  },
  {
    name: "Roman numerals (asserts)",
    format: "asserts", entry: "to_roman", candidates: 64,
    prompt: "Write a Python function `to_roman(n)` that returns the Roman numeral of a whole number from 1 to 3999 as a string. "
      + "Answer with the function only.",
    tests: `assert to_roman(1) == "I"
assert to_roman(4) == "IV"
assert to_roman(9) == "IX"
assert to_roman(58) == "LVIII"
assert to_roman(444) == "CDXLIV"
assert to_roman(1994) == "MCMXCIV"
assert to_roman(3999) == "MMMCMXCIX"
`,
  },
  {
    name: "Largest gap in a list of numbers (a program, input and output)",
    format: "stdio", entry: "", candidates: 64,
    prompt: "Write a Python program. Its input has a whole number n on the first line and n whole numbers on the second. "
      + "Sort the numbers and print the largest difference between two that are next to each other then. With fewer than two "
      + "numbers print 0.",
    tests: `[
  {"input": "4\\n1 9 3 4\\n", "output": "5\\n"},
  {"input": "5\\n-7 2 2 0 10\\n", "output": "8\\n"},
  {"input": "1\\n3\\n", "output": "0\\n"},
  {"input": "3\\n5 5 5\\n", "output": "0\\n"}
]
`,
  },
  {
    name: "Words in a sentence (pytest)",
    format: "pytest", entry: "", candidates: 32,
    prompt: "Write a Python function `count_words(text)` that returns a dict from each word of the text, in lower case, to how often "
      + "it occurs. Words are runs of letters; everything else separates them.",
    tests: `import pytest
from solution import count_words


@pytest.mark.parametrize("text, words", [
    ("", {}),
    ("One fish, two FISH", {"one": 1, "fish": 2, "two": 1}),
    ("a-b a_b", {"a": 2, "b": 2}),
])
def test_counts(text, words):
    assert count_words(text) == words


def test_digits_separate():
    assert count_words("x1y 22") == {"x": 1, "y": 1}
`,
  },
  {
    name: "Bracket depth, from its examples (doctest)",
    format: "doctest", entry: "depth", candidates: 32,
    prompt: "Write a Python function `depth(text)` that returns how deep round brackets are nested in the text, or -1 where they "
      + "don't match. Answer with the function only.",
    tests: `>>> depth("")
0
>>> depth("(a(b)c)(d)")
2
>>> depth("((())")
-1
>>> depth(")(")
-1
`,
  },
  {
    name: "A calculator: hard for a small model (asserts)",
    format: "asserts", entry: "calculate", candidates: 128,
    prompt: "Write a Python function `calculate(text)` that evaluates an arithmetic expression of whole numbers with + - * /, "
      + "round brackets, a minus before a number or bracket, and spaces anywhere. / is division rounded toward zero. Don't use eval. "
      + "Answer with the function only.",
    tests: `assert calculate("1 + 2 * 3") == 7
assert calculate("(1 + 2) * 3") == 9
assert calculate("-7 / 2") == -3
assert calculate("2 - -(3 - 5)") == 0
assert calculate("8 / (3 - 1) / 2") == 2
`,
  },
];
