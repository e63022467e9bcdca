#!/usr/bin/python3
"""Writes chat_templates.json: chat templates and what jinja2 itself makes of them.

Independent of the verifier: a small reader of GGUF metadata takes `tokenizer.chat_template` out of the model files named on the command
line, jinja2's sandboxed environment with the options that transformers documents for chat templates renders them here, outside any box.
    tests/vectors/make_templates.py models/*.gguf > tests/vectors/chat_templates.json
Made with jinja2 3.1.2 on Debian 12."""

import json
import struct
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def read_string(f):
    (n,) = struct.unpack("<Q", f.read(8))
    return f.read(n).decode("utf-8")


def read_value(f, kind):
    if kind == 8:
        return read_string(f)
    if kind == 9:
        inner, n = struct.unpack("<IQ", f.read(12))
        if inner in SIZES:
            f.seek(SIZES[inner] * n, 1)
            return None
        return [read_value(f, inner) for _ in range(n)]
    return f.read(SIZES[kind])


def chat_template(path):
    with open(path, "rb") as f:
        assert f.read(4) == b"GGUF"
        _, _, n = struct.unpack("<IQQ", f.read(20))
        for _ in range(n):
            key = read_string(f)
            (kind,) = struct.unpack("<I", f.read(4))
            value = read_value(f, kind)
            if key == "tokenizer.chat_template":
                return value
    raise SystemExit("%s has no chat template" % path)


CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SMALL = {
    "raise": "{% if messages|length == 0 %}{{ raise_exception('no messages at all') }}{% endif %}{{ messages[0].content }}",
    "blocks": "{% for m in messages %}\n  {% if loop.first %}\n[{{ m.role }}]\n  {% endif %}\n{{ m.content | trim }}\n{% endfor %}\n",
    "tojson": "{{ messages | tojson }}|{{ messages[0] | tojson(indent=2) }}|{{ {'b': 1, 'a': '<é>'} | tojson(sort_keys=true) }}",
    "controls": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}{% break %}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.content|length %}{% endfor %}{{ ns.n }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}",
    "undefined": "{{ missing }}{{ bos_token }}{{ messages[0].tool_calls }}{% if tools is defined %}T{% endif %}",
}
USER = {"role": "user", "content": "Write add(a, b)."}
CONVERSATIONS = [
    [USER],
    [{"role": "system", "content": "Be brief."}, USER],
    [USER, {"role": "assistant", "content": "  def add(a, b): return a + b \n"}, {"role": "user", "content": "Thanks."}],
    [{"role": "user", "content": "héllo \U0001f600 <|im_end|> {{ 7 * 7 }} {% raw %} \\n \"'&<>"}],
    [{"role": "user", "content": ""}],
    [],
]


def environment():
    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            next(parser.stream)
            return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True))

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


def main():
    templates = [("chatml", CHATML)] + [(p.rsplit("/", 1)[-1].split("-instruct")[0], chat_template(p)) for p in sys.argv[1:]]
    templates += sorted(SMALL.items())
    out, seen = [], set()
    for name, text in templates:
        if text in seen:
            continue
        seen.add(text)
        template, cases = environment().from_string(text), []
        for messages in CONVERSATIONS:
            for generate in (True, False):
                variables = {"messages": messages, "add_generation_prompt": generate, "bos_token": "<s>", "eos_token": "</s>"}
                try:
                    cases.append({"variables": variables, "text": template.render(**variables)})
                except Exception as error:
                    cases.append({"variables": variables, "error": str(error)})
        out.append({"name": name, "template": text, "cases": cases})
    json.dump(out, sys.stdout, ensure_ascii=False, indent=1)
    print()


main()
