"""The command `pinfactory`: every function in `COMMANDS` is a subcommand."""

import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import tyro

# What a subcommand computes with is imported inside it, so that `pinfactory --help` is quick.


def rate_utility(
    out: Path = Path("out"), experts: tuple[int, ...] = (1, 2, 4, 8), seed: int = 0
) -> None:
    """Draw what information buys when a known table is divided among experts.

    Parameters
    ----------
    out
        Directory for rate_utility.svg, .png and .json; made if it is not there.
    experts
        Numbers of experts to compare.
    seed
        Seed of the solver's random starts.
    """
    if not experts:
        raise ValueError("--experts must be one number or more, but got none")
    out.mkdir(parents=True, exist_ok=True)

    from pinfactory.experiments import rate_utility_exact as experiment

    settings = experiment.Settings.quick(n_experts=experts, seed=seed)
    data = experiment.run(settings, progress=True)
    figure = experiment.draw(data)
    files = [out / f"rate_utility.{kind}" for kind in ("svg", "png", "json")]
    figure.savefig(files[0])
    figure.savefig(files[1], dpi=150)
    files[2].write_text(json.dumps(data))

    print("Best expected utility when an expert may use so many bits, I(X;Y|M):")
    _print_table(experiment.summary(data))
    print(*(f"written: {file}" for file in files), sep="\n")


COMMANDS = {"rate-utility": rate_utility}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return the exit code: 0 for success, 2 for an error."""
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if arguments == ["--version"]:
        print(f"pinfactory {version('pinfactory')}")
        return 0
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="pinfactory",
            description="Learning systems that divide labour. --version prints the version.",
            args=arguments,
        )
    except SystemExit as stop:  # how tyro ends after --help or a mistyped option
        return int(stop.code or 0)
    except (ValueError, OSError) as error:
        print(f"pinfactory: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("pinfactory: interrupted", file=sys.stderr)
        return 130
    return 0


def _print_table(rows: Sequence[dict[str, float | int]]) -> None:
    print("".join(f"{name:>12}" for name in rows[0]))
    for row in rows:
        print(
            "".join(
                f"{value:>12.3f}" if isinstance(value, float) else f"{value:>12}"
                for value in row.values()
            )
        )
