"""The textual form of pass pipelines: what it accepts, what it says, and its round trip."""

from __future__ import annotations

import dataclasses
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic_toolkit.errors import PassPipelineError
from mosaic_toolkit.mlir_pass import MlirPass
from mosaic_toolkit.pass_pipeline import PassPipeline
from mosaic_toolkit.passes import Pass


@dataclasses.dataclass(frozen=True)
class Tune(Pass):
    """Has an option of every kind."""

    name = "tune"

    depth: int
    label: str = "none"
    dry_run: bool = False
    buffers: tuple[str, ...] = ()
    keep: tuple[str, ...] = ("acc",)


@dataclasses.dataclass(frozen=True)
class Bare(Pass):
    """Has no options."""

    name = "bare"


@dataclasses.dataclass(frozen=True)
class Even(Pass):
    """Takes even numbers only."""

    name = "even"

    n: int

    def __post_init__(self):
        if self.n % 2:
            raise ValueError(f"{self.n} is odd")


REGISTRY = {cls.name: cls for cls in (Tune, Bare, Even)}


def parse(text: str) -> PassPipeline:
    return PassPipeline.parse(text, REGISTRY)


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("", ()),
        ("  \n", ()),
        ("bare", (Bare(),)),
        ("bare{}", (Bare(),)),
        (" bare , bare ", (Bare(), Bare())),
        ("tune{depth=2}", (Tune(2),)),
        ("tune{depth=-2 dry-run}", (Tune(-2, dry_run=True),)),
        ("tune{depth=2 dry_run=false label=a.b[0]}", (Tune(2, label="a.b[0]"),)),
        ("tune{depth=2 buffers=x,y keep=}", (Tune(2, buffers=("x", "y"), keep=()),)),
        ("tune{depth=2, buffers=x, y, keep=z}", (Tune(2, buffers=("x", "y"), keep=("z",)),)),
        ("tune{\n  buffers=x,y\n  depth=2\n}", (Tune(2, buffers=("x", "y")),)),
        ('tune{depth=2 label="a } \\" b"}', (Tune(2, label='a } " b'),)),
        ('tune{depth=2 buffers="a,b",""}', (Tune(2, buffers=("a,b", "")),)),
        ("tune{depth=2 buffers=xs['a']}", (Tune(2, buffers=("xs['a']",)),)),
        ("canonicalize", (MlirPass("canonicalize"),)),
        (
            "canonicalize{max-iterations=3 top-down=false},cse",
            (MlirPass("canonicalize{max-iterations=3 top-down=false}"), MlirPass("cse")),
        ),
        ("func.func(cse,canonicalize)", (MlirPass("func.func(cse,canonicalize)"),)),
        ("builtin.module(cse,bare)", (MlirPass("cse"), Bare())),
        ("builtin.module()", ()),
    ],
)
def test_accepts(text, passes):
    pipeline = parse(text)
    assert pipeline == PassPipeline(passes)
    assert parse(str(pipeline)) == pipeline


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        (",", 1, "expected the name of a pass, found ','"),
        ("bare,", 6, "expected the name of a pass, found the end"),
        ("bare bare", 6, "expected ',' or the end, found 'b'"),
        ("bare)", 5, "expected ',' or the end, found ')'"),
        ("1bare", 1, "expected the name of a pass, found '1'"),
        ("tune{depth=1", 5, "this '{' is not closed; expected '}'"),
        ("tune{depth=(1}", 14, "expected ')', found '}'"),
        ('tune{label="a}', 12, "this string has no end"),
        ('tune{depth=1 label="\\x"}', 21, "malformed string: invalid \\escape"),
        ("tune{depth=1 buffers=a,}", 24, "expected a value, found the end"),
        ("tune{depth=1 =2}", 14, "expected the name of an option, found '='"),
        ("tune{depth=1 label=a=b}", 21, "expected a space, ',' or '}', found '='"),
        ("tune{depth=1\x00}", 13, "unexpected character '\\x00'"),
        ("tune", 5, "tune needs the option 'depth'"),
        ("tune{depht=1}", 6, "tune has no option 'depht'"),
        ("bare{x=1}", 6, "bare has no option 'x'"),
        ("tune{depth=1 depth=2}", 14, "option 'depth' is given twice"),
        ("tune{depth=two}", 12, "'depth' is a whole number, not 'two'"),
        ("tune{depth=1,2}", 12, "'depth' takes one int, not 2 values"),
        ("tune{depth=}", 12, "'depth' takes one int, not no value"),
        ("tune{depth}", 11, "'depth' needs a value: depth=N"),
        ("tune{depth=1 dry-run=yes}", 22, "'dry-run' is true or false, not 'yes'"),
        ("bare,even{n=3}", 6, "even: 3 is odd"),
        ("tone{depth=1}", 1, "unknown pass 'tone'"),
        ("bare,cse{max=3}", 6, "cse: no such option max"),
        ("func.fun(cse)", 1, "'func.fun' is no operation"),
        ("func.func(bare)", 1, "'bare' does not refer to a registered pass"),
        ("func.func(" * 65 + "cse" + ")" * 65, 650, "nested deeper than 64 levels"),
    ],
)
def test_says_where_and_what_was_expected(text, column, message):
    with pytest.raises(PassPipelineError) as caught:
        parse(text)
    first, line, caret = caught.value.message.split("\n")
    assert first.startswith(f"pass pipeline, column {column}: ")
    assert message in first
    assert line == f"  {text}"
    assert caret == " " * (column + 1) + "^"


def test_shows_the_line_of_a_pipeline_of_several():
    with pytest.raises(PassPipelineError, match="column 4: ") as caught:
        parse("bare,\n  \tbone{x=1},\nbare")
    assert caught.value.message.split("\n")[1:] == ["     bone{x=1},", "     ^"]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("tone", "did you mean tune?"),
        ("canonicalise", "did you mean canonicalize?"),
        ("zzzzzzzzzz", "passes: tune, bare, even, canonicalize, cse"),
        ("bare{x=1}", "bare has no options"),
        (
            "tune{x=1}",
            "it is written tune{depth=N [label=TEXT] [dry-run=true|false] "
            "[buffers=A,B,...] [keep=A,B,...]}",
        ),
    ],
)
def test_hints(text, hint):
    with pytest.raises(PassPipelineError) as caught:
        parse(text)
    assert hint in caught.value.hint


def test_a_pass_must_not_take_the_name_of_one_of_mlirs():
    @dataclasses.dataclass(frozen=True)
    class Cse(Pass):
        name = "cse"

    with pytest.raises(PassPipelineError, match=r"both a pass of .* and one of MLIR's own"):
        PassPipeline.parse("cse", {"cse": Cse})


def test_options_at_their_default_are_left_out():
    assert str(Tune(3)) == "tune{depth=3}"
    assert str(Tune(3, "none", True, ("a b", "c"), ())) == (
        'tune{depth=3 dry-run=true buffers="a b",c keep=}'
    )


texts = st.text() | st.text(alphabet=string.ascii_letters + "_[]'\"=,{}() \\\n", max_size=6)
tunes = st.builds(
    Tune,
    depth=st.integers(),
    label=texts,
    dry_run=st.booleans(),
    buffers=st.lists(texts, max_size=4).map(tuple),
    keep=st.lists(texts, max_size=2).map(tuple),
)
passes = (
    tunes | st.just(Bare()) | st.sampled_from([MlirPass("cse"), MlirPass("func.func(cse,sccp)")])
)


@settings(deadline=None, max_examples=200)
@given(st.lists(passes, max_size=4))
def test_any_pipeline_parses_back(passes):
    pipeline = PassPipeline(tuple(passes))
    assert parse(str(pipeline)) == pipeline


# Pieces that a pipeline is made of, so that random text gets past the first character.
pieces = st.sampled_from(
    [
        "tune",
        "bare",
        "cse",
        "depth",
        "keep",
        "{",
        "}",
        "(",
        ")",
        ",",
        "=",
        " ",
        '"',
        "1",
        "func.func",
    ]
)


@settings(deadline=None, max_examples=300)
@given(st.lists(pieces, max_size=12).map("".join) | st.text(max_size=12))
def test_any_text_is_a_pipeline_or_an_error(text):
    try:
        pipeline = parse(text)
    except PassPipelineError:
        return
    assert parse(str(pipeline)) == pipeline
