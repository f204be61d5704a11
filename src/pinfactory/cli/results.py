"""The command `pinfactory results`."""

import textwrap
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

if TYPE_CHECKING:
    from pinfactory.experiments import Change


def results(
    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME …]")] = (),
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("out"),
    accepted: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("results"),
    accept: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Print results, and compare new ones with those accepted before.

    Marks numbers that differ by more than the spread of both runs.

    The exit code is 1 if a promised number or a ratio got worse by more.

    Parameters
    ----------
    names
        Which experiments; all with results by default.
    out
        Folder that `pinfactory reproduce` has written to.
    accepted
        Folder of the accepted results, or of another run to compare with.
    accept
        Accept the new results: copy them to the folder of the accepted ones.
    """
    from pinfactory.experiments import accept_result, compare, read_accepted, read_result

    new = {path.parent.name: read_result(path) for path in sorted(out.glob("*/result.json"))}
    old = read_accepted(accepted)
    known = sorted(set(new) | set(old))
    wanted = [name.replace("-", "_") for name in names] or known
    for name in wanted:
        if name not in known:
            raise ValueError(f"there is no result of {name!r} in {out} or {accepted}")
    if not wanted:
        raise ValueError(f"there is no result in {out} or {accepted}: run `pinfactory reproduce`")
    if accept:
        chosen = [name for name in wanted if name in new]
        if not chosen:
            raise ValueError(f"there is nothing to accept in {out}")
        for name in chosen:
            print(accept_result(out, accepted, name))
        return 0
    verdicts: Counter[str] = Counter()
    for name in wanted:
        if name in new and new[name] is None:
            print(f"{name}\n    the result in {out} is damaged: run it again")
        result, before = new.get(name), old.get(name)
        if result is None and before is not None:
            _print_result(before, "accepted")
            _print_changes(compare(before, before))
        elif result is not None:
            _print_result(result, "new")
            changes = compare(result, before)
            _print_changes(changes)
            verdicts.update(change.verdict for change in changes)
    compared = sum(verdicts[verdict] for verdict in ("same", "changed", "better", "worse"))
    if compared:
        print(f"\n{verdicts['same']} of {compared} numbers are within the spread of both runs")
    if verdicts["worse"]:
        print(f"{verdicts['worse']} got worse by more than the spread")
    return 1 if verdicts["worse"] else 0


def _print_result(result: dict[str, Any], state: str) -> None:
    print(f"{result['name']:<60.60}{state:>19}")
    made = (
        f"pinfactory {result['versions'].get('pinfactory', '?')} {result['commit']} · scale "
        f"{result['scale']} · seeds {result['seeds']} · {result['finished'][:10]} · "
        f"{result['processor']}, {result['cores']} cores"
    )
    print(textwrap.fill(made, 79, initial_indent="    ", subsequent_indent="    "))
    if result["error"]:
        print(f"    FAILED: {result['error'].strip().splitlines()[-1]}"[:79])


def _print_changes(changes: "list[Change]") -> None:
    from pinfactory.report import number

    for change in changes:
        new = number(change.new) + ("" if change.spread is None else f" ± {number(change.spread)}")
        old = "" if change.verdict == "" else f"was {number(change.old)}"
        *first, last = textwrap.wrap(change.name, 39, subsequent_indent="  ")
        for line in first:
            print(f"  {line}")
        print(f"  {last:<40}{new:>17.17}{old:>12.12}{change.verdict:>8}".rstrip())
