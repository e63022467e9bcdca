"""Chat templates: process R compiles one, its children V render it, one for each request.

The environment is the one that the template authors test against: jinja2's immutable sandbox, trim_blocks and lstrip_blocks on, loop
controls, `raise_exception`, `strftime_now`, a `tojson` that leaves non-ASCII text and HTML alone, and the `generation` block as
a plain block."""

import datetime
import json
import os
import warnings

from firstpass import inside

OUTPUT, REPORT = 1, 4
PASSED, PREPARED, REFUSED, MISSING = b"PREM"


class Raised(Exception):
    """What the template said with raise_exception."""


def make_environment():
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    def raise_exception(message):
        raise Raised(str(message))

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    def strftime_now(pattern):
        return datetime.datetime.now().strftime(pattern)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def explain(error):
    if isinstance(error, Raised):
        return str(error)
    line = getattr(error, "lineno", None)
    text = "%s: %s" % (type(error).__name__, error)
    return text + (" (line %d of the template)" % line if line else "")


def render(template, kind, job):
    report, nonce, memory, _, cpu, _, fds = job
    variables_fd, output = fds
    source = os.pread(variables_fd, os.fstat(variables_fd).st_size, 0)
    inside.enter(kind, memory, cpu, -1, report, output, -1, -1)
    try:
        text = template.render(**json.loads(source)).encode("utf-8", "surrogatepass")
    except BaseException as error:  # noqa: B036, the template may raise anything
        text = explain(error).encode("utf-8", "backslashreplace")
        inside.report(REPORT, REFUSED, nonce, 0, 0, False, b"", text, b"")
        return
    at = 0
    while at < len(text):
        at += os.write(OUTPUT, text[at : at + 65536])
    inside.report(REPORT, PASSED, nonce, 0, 0, False, b"", b"", b"")


def run(_, job):
    """Process R: compiles, reports, then forks V's until its control socket ends."""
    report, nonce, memory, _, _, _, fds = job
    source_fd, control = fds
    inside.limit(memory, 0)
    os.dup2(1, 2)  # /dev/null: what its compiler says about the template has no end and no reader
    warnings.simplefilter("ignore")  # for its children too: their standard error is the output
    try:
        source = os.pread(source_fd, os.fstat(source_fd).st_size, 0).decode("utf-8")
        os.close(source_fd)
        template = make_environment().from_string(source)
    except ImportError as error:
        text = "chat templates need the Python package jinja2 (Debian: python3-jinja2): %s" % error
        inside.report(report, MISSING, nonce, 0, 0, False, b"", text.encode(), b"")
        return
    except Exception as error:
        text = explain(error).encode("utf-8", "backslashreplace")
        inside.report(report, REFUSED, nonce, 0, 0, False, b"", text, b"")
        return
    inside.report(report, PREPARED, nonce, 0, 0, False, b"", b"", b"")
    os.close(report)

    def handle(kind, child):
        return render(template, kind, child)

    inside.serve(control, handle)
