"""Whether tests can leave nothing behind in the process that runs them, told from their text alone.

Such tests run in one process for many candidates: each run has a namespace of its own, and nothing else could carry over.  Whatever
isn't known to be harmless here gets a fresh process for each candidate, which costs some milliseconds and needs no proof.  What can't
be told from the text, but is seen when a run has ended, ends the process too: see Traces."""

import ast
import resource
import sys

# All that tests may use of modules: nothing in them has a state that a user could change or is a way to something that has; random
# is seeded anew for each run.
_USABLE = {
    "bisect": "bisect bisect_left bisect_right insort insort_left insort_right",
    "collections": "ChainMap Counter OrderedDict defaultdict deque namedtuple",
    "copy": "copy deepcopy",
    "datetime": "MAXYEAR MINYEAR UTC date datetime time timedelta timezone",
    "fractions": "Fraction",
    "functools": "cache cmp_to_key lru_cache partial reduce",
    "heapq": "heapify heappop heappush heappushpop heapreplace merge nlargest nsmallest",
    "itertools": "accumulate batched chain combinations combinations_with_replacement compress count cycle dropwhile filterfalse groupby "
    "islice pairwise permutations product repeat starmap takewhile tee zip_longest",
    "math": "acos acosh asin asinh atan atan2 atanh cbrt ceil comb copysign cos cosh degrees dist e erf erfc exp exp2 expm1 fabs "
    "factorial floor fmod frexp fsum gamma gcd hypot inf isclose isfinite isinf isnan isqrt lcm ldexp lgamma log log10 log1p log2 modf "
    "nan nextafter perm pi pow prod radians remainder sin sinh sqrt sumprod tan tanh tau trunc ulp",
    "random": "betavariate choice choices expovariate gauss getrandbits normalvariate randbytes randint random randrange sample seed "
    "shuffle triangular uniform",
    "re": "A ASCII DOTALL I IGNORECASE M MULTILINE S VERBOSE X compile error escape findall finditer fullmatch match search split sub subn",
    "string": "ascii_letters ascii_lowercase ascii_uppercase capwords digits hexdigits octdigits printable punctuation whitespace",
    "typing": "AbstractSet Any AnyStr Callable Collection Container Counter DefaultDict Deque Dict FrozenSet Generator Generic Hashable "
    "Iterable Iterator List Literal Mapping MutableMapping MutableSequence MutableSet NoReturn Optional OrderedDict Reversible Sequence "
    "Set Sized SupportsFloat SupportsIndex SupportsInt Text Tuple Type TypeVar Union",
}
USABLE = {module: frozenset(names.split()) for module, names in _USABLE.items()}
# Builtins that reach beyond the namespace, or attributes by computed names.
BUILTINS = frozenset(
    "breakpoint compile copyright credits delattr dir eval exec exit getattr globals help input license locals memoryview object open "
    "quit setattr super type vars".split()
)
# Of generators, tracebacks, code and frames: the way to a frame's globals and builtins.
INNER = ("gi_", "cr_", "ag_", "tb_", "co_", "f_", "func_", "mro")
# Methods of what typing's names stand for, and of their like, that change a class of the library.
CHANGING = frozenset(["register"])
# A class of the tests is listed among its bases' subclasses; a pattern reads attributes by any name.
REACHING = (ast.ClassDef, ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await) + tuple(
    getattr(ast, name) for name in ("MatchClass", "TypeAlias") if hasattr(ast, name)
)
FUNCTIONS = (ast.FunctionDef, ast.Lambda)
MOST_GROWTH_KB = 16 * 1024  # of what B held at most: what comes after must find memory as it was


def leaves_nothing(library, *trees):
    """library: (module, attribute or None) of what is bound for the tests without an import of theirs."""
    if not all(name is None or name in USABLE.get(module, ()) for module, name in library):
        return False
    modules = {module: module for module, name in library if name is None}  # the name that stands for each module
    nodes = [node for tree in trees for node in ast.walk(tree)]
    if not all(_note_imports(node, modules) for node in nodes):
        return False
    if any(module not in USABLE for module in modules.values()):
        return False
    if modules.keys() & {name for node in nodes for name in _bound(node)}:
        return False  # now a module, now something else: not told apart here
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    bases = {id(node.value) for node in attributes}
    return all(_is_harmless(node, modules, bases) for node in nodes)


def _note_imports(node, modules):
    if isinstance(node, ast.Import):
        for alias in node.names:
            name = alias.asname or alias.name
            if name[:2] == "__" or alias.name not in USABLE or modules.setdefault(name, alias.name) != alias.name:
                return False
    elif isinstance(node, ast.ImportFrom):
        usable = () if node.level else USABLE.get(node.module, ())
        return all(alias.name in usable and (alias.asname or "")[:2] != "__" for alias in node.names)
    return True


def _bound(node):
    """Names that a node binds, but for those of modules."""
    if isinstance(node, ast.alias):
        return []
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return [node.id]
    if isinstance(node, ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    found = [getattr(node, field, None) for field in ("name", "arg", "rest")]  # functions, handlers, patterns; arguments; mappings
    return [name for name in found if isinstance(name, str)]


def _is_harmless(node, modules, bases):
    if isinstance(node, REACHING) or any(name[:2] == "__" for name in _bound(node)):
        return False
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        return all(name[:2] != "__" for name in node.names)
    if isinstance(node, ast.Name):
        if node.id[:2] == "__" or node.id in BUILTINS:
            return False
        return node.id not in modules or id(node) in bases  # a module only for what is in it, never as a value
    if isinstance(node, ast.Attribute):
        if not isinstance(node.ctx, ast.Load) or node.attr[:1] == "_" or node.attr.startswith(INNER) or node.attr in CHANGING:
            return False
        if isinstance(node.value, ast.Name) and node.value.id in modules:
            return node.attr in USABLE[modules[node.value.id]]
    if isinstance(node, FUNCTIONS):
        return not _cleans_up_late(node)
    return True


def _cleans_up_late(function):
    """A generator that isn't run to its end does what is in its `finally` whenever it goes: in a later candidate's run."""
    inside = list(ast.walk(function))
    return any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in inside) and any(
        isinstance(n, (ast.Try, ast.With)) or type(n).__name__ == "TryStar" for n in inside
    )


class Traces:
    """What a run may leave that its tests' text doesn't tell; made before the first run."""

    def __init__(self):
        self.modules = len(sys.modules)
        self.most_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def has_none(self, link):
        """When a run has ended.  An object of the candidate's might live on as a key of a cache, an array loads numpy, and a large
        value leaves holes behind."""
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self.most_kb
        return not link.met_objects and len(sys.modules) == self.modules and grown <= MOST_GROWTH_KB
