"""doctest: the examples of a text or of docstrings.  Each is run in B with the names of the candidate bound; what it prints is what
the example's own statements print, and what the candidate prints while they call it."""

import contextlib
import io
import traceback

from firstpass import channel

WATCHED = {"capsys", "capfd", "redirect_stdout", "StringIO"}


def watches_output(names):
    """True where the tests look at what is printed."""
    imported = {n for names_ in names.imports.values() for n in names_}
    attributes = names.loaded.keys() | names.bound | imported
    return bool(WATCHED & attributes) or "contextlib" in attributes or "io" in attributes


def prepare(text, prompt, unusable):
    """(examples, a program of all their statements, to find the names in)"""
    import doctest  # here and not above: the zygote stays small

    found = []
    for source in (text, prompt):
        try:
            parts = doctest.DocTestParser().get_examples(source)
        except ValueError as error:
            raise unusable("the examples can't be read: %s" % error)
        found += parts
        if found:
            break  # the prompt's own examples, where the tests have none
    if not any(e.want for e in found):
        raise unusable("the format doctest needs examples with an expected output (>>> lines)")
    program = []
    for number, example in enumerate(found):
        try:
            compile(example.source, "example %d" % (number + 1), "single", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise unusable("example %d doesn't compile: %s" % (number + 1, getattr(error, "msg", error)))
        program.append(example.source)
    return found, "".join(program)


def rewrite(tree, _):
    return tree


def raised(link, error):
    """The last lines of the traceback that Python would print, the candidate's classes by their own names."""
    fault = link.faults.get(id(error))
    if fault is not None:
        text = fault.text.rpartition(" (line ")[0] if fault.line else fault.text
        return text + "\n"
    return "".join(traceback.format_exception_only(type(error), error))


def run(module, link, told, score, failed, examples):
    import doctest

    checker = doctest.OutputChecker()
    space = module.__dict__
    for example in examples:
        told.begin()
        flags = 0
        for flag, on in example.options.items():
            flags |= flag if on else 0
        if flags & doctest.SKIP:
            continue
        output = io.StringIO()
        error = None
        with contextlib.redirect_stdout(output):
            try:
                exec(compile(example.source, "example", "single", dont_inherit=True), space)
            except Exception as caught:
                error = caught
        name = ">>> " + " ".join(example.source.split())
        got = output.getvalue()
        if error is not None:
            text = raised(link, error)
            if example.exc_msg is not None:
                good = checker.check_output(example.exc_msg, text, flags)
                if not good and flags & doctest.IGNORE_EXCEPTION_DETAIL:
                    good = text.split(":")[0].rpartition(".")[2] == example.exc_msg.split(":")[0].rpartition(".")[2]
                judge(told, link, name, good, text, example.exc_msg)
            else:
                told.fails(name, error, counts=bool(example.want) and bool(link.calls))
        elif example.exc_msg is not None:
            judge(told, link, name, False, got, example.exc_msg)
        elif example.want or got:
            judge(told, link, name, checker.check_output(example.want, got, flags), got, example.want)
        if told.first_failure is not None and not score:
            return


def judge(told, link, name, good, got, want):
    if good:
        if link.calls and want:
            told.passes(name)
        return
    got, want = (" ".join(t.split()) for t in (got, want))
    text = "%s printed %s, expected %s" % (name, got[:100] or "nothing", want[:100] or "nothing")
    told.fails(name, channel.cut(text), got[:200], want[:200], counts=bool(link.calls))
