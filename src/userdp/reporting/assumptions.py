"""What a claimed ε rests on, in words, each assumption graded by what breaks if it is false."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from userdp.noise.gaussian import FLOATING_POINT_ASSUMPTION, NoiseSampler
from userdp.reporting.markdown import visible
from userdp.reporting.run_facts import RunFacts


class Grade(StrEnum):
    """How much hangs on an assumption.

    ``CRITICAL``: false means that the claimed ε does not hold; somebody must have made sure.
    ``THEORETICAL``: a known gap between proof and machine; no way to use it is known to us.
    ``NEGLIGIBLE``: bounded far below the digits shown, or without bearing on ε.
    """

    CRITICAL = "critical"
    THEORETICAL = "theoretical"
    NEGLIGIBLE = "negligible"


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumption:
    """One thing that has to be true.

    Args:
        key: names it, for links and tests.
        title: in a few words.
        grade: how much hangs on it.
        statement: what has to be true.
        otherwise: what follows if it is not.
        ensured: who sees to it, and how.
    """

    key: str
    title: str
    grade: Grade
    statement: str
    otherwise: str
    ensured: str


def assumptions_of(runs: Sequence[RunFacts]) -> tuple[Assumption, ...]:
    """The assumptions of these runs' claims, the most critical first."""
    rests = [*_ALWAYS, *_noise(runs)]
    samplings = [run.plan.sampling for run in runs if run.plan is not None]
    if not all(sampling.by_user for sampling in samplings):
        rests.append(_CAP)
    assumed = {one.key: one for sampling in samplings for one in sampling.words.assumes}
    rests += [Assumption(grade=Grade.CRITICAL, **asdict(one)) for one in assumed.values()]
    if any(run.settings.get("selection", "").endswith("perplexity") for run in runs):
        rests.append(_SCORES)
    rests += [_owners(words) for words in sorted({run.owners for run in runs if run.owners})]
    against = sorted({name for run in runs for name in run.filtered_against})
    rests += [_filtered(against)] if against else []
    if len(runs) > 1:
        rests.append(_SEVERAL)
    rests += [_basis(basis) for basis in _uncovered_bases(runs)]
    if any(run.plan is not None and not run.claim.complete for run in runs):
        rests.append(_INTERRUPTED)
    order = list(Grade)
    return tuple(sorted(rests, key=lambda assumption: order.index(assumption.grade)))


def _told(text: str) -> str:
    """Words of a file inside a sentence of ours, whose backticks mean code."""
    return visible(text).replace("`", "'")


def _noise(runs: Sequence[RunFacts]) -> list[Assumption]:
    """What the noise of these runs rests on, by what their ledgers say drew it."""
    drawn = {sampler for run in runs for sampler in run.noise_samplers or ()}
    if any(run.plan is not None and run.plan.clip.adaptation is not None for run in runs) and drawn:
        drawn.add(NoiseSampler.HOST)  # draws the count of adaptive clipping everywhere
    samplers = [sampler.in_words for sampler in NoiseSampler if sampler in drawn]
    words = f"The noise was drawn {'; and '.join(samplers)}. " if samplers else ""
    unsaid = (
        "The ledger of a run here does not say what drew its noise; nothing is claimed for it. "
        if any(run.noise_samplers is None for run in runs)
        else ""
    )
    blocks = "; ".join(sampler.seeding for sampler in NoiseSampler if sampler in drawn)
    return [
        Assumption(
            key="floating-point",
            title="Noise in floating point",
            grade=Grade.THEORETICAL,
            statement=words + unsaid + FLOATING_POINT_ASSUMPTION,
            otherwise="The low-order bits of a noisy update might tell more than ε allows.",
            ensured=(
                "Rounding leaves every release on one grid, and each of two added draws hides the "
                "lattice of the other. No attack on it is known to us (Mironov 2012 shows what "
                "naive sampling leaks); none is ruled out."
            ),
        ),
        Assumption(
            key="randomness",
            title="The operating system's randomness",
            grade=Grade.THEORETICAL,
            statement=(
                "Seeds from the operating system are unpredictable, and the generators they start "
                "behave like true randomness."
            ),
            otherwise="Predictable noise can be subtracted.",
            ensured=(
                "256 fresh bits from the system for each draw of cohorts"
                + (
                    f"; for each block of noise and each of its two draws {blocks}."
                    if blocks
                    else "."
                )
            ),
        ),
    ]


def _owners(assumption: str) -> Assumption:
    return Assumption(
        key="owners",
        title="Records of several people were given to the first",
        grade=Grade.CRITICAL,
        statement=f"The store was prepared so: {_told(assumption)}.",
        otherwise="Somebody whom another user's record also belongs to is not protected in it.",
        ensured=(
            "Nobody, where records do have several owners: it is the meaning of the claim. "
            "`userdp prepare --owners greedy` covers all owners."
        ),
    )


def _filtered(against: Sequence[str]) -> Assumption:
    return Assumption(
        key="filtered-against-private",
        title="Public text was filtered against private data",
        grade=Grade.CRITICAL,
        statement=(
            "Text that was trained on, here or for the base model, was chosen by what it shares "
            f"with private data ({_told(', '.join(against))}), and nothing secret shows in what "
            "was left."
        ),
        otherwise="The model depends on that private data in a way that no ε here covers.",
        ensured="Nobody. Filter by lists of sites alone to be rid of it.",
    )


def _uncovered_bases(runs: Sequence[RunFacts]) -> list[str]:
    """What plans were chosen from that no claim here covers, each once."""
    bases = {run.basis or "" for run in runs}
    return sorted(b for b in bases if b.startswith(("non-private", "statistics of held-out")))


def _basis(basis: str) -> Assumption:
    return Assumption(
        key="plan-basis",
        title="What the plan was chosen from is not covered",
        grade=Grade.CRITICAL,
        statement=f"Parameters of the plan were chosen from {_told(basis)}.",
        otherwise=(
            "They are exact numbers of people's text, without noise: what the plan tells of them "
            "comes on top of ε, for the people they were taken from."
        ),
        ensured=(
            "Nobody. Plan from public or declared numbers, or from `userdp stats --epsilon`, to be "
            "rid of it."
        ),
    )


_ALWAYS = (
    Assumption(
        key="identity",
        title="One id, one person",
        grade=Grade.CRITICAL,
        statement=(
            "All that one person contributed carries one user id, and the id was assigned without "
            "regard to the text."
        ),
        otherwise="A person with several ids is protected less, as a group of that many users.",
        ensured="The operator, who chose the field that names the user.",
    ),
    Assumption(
        key="contribution",
        title="What a user wrote, not what others wrote about them",
        grade=Grade.CRITICAL,
        statement=(
            "The claim bounds the influence of a user's own records. A secret that other users "
            "repeat, quote or answer is spread over their records too."
        ),
        otherwise="What several users know of somebody may be learned, and no ε here limits it.",
        ensured="Nobody: it is the meaning of the claim. Judge whether the unit fits the data.",
    ),
    Assumption(
        key="constants",
        title="Constants owe nothing to the data",
        grade=Grade.CRITICAL,
        statement=(
            "The declared population, sampling probability, number of steps, noise, denominators "
            "and δ were fixed before the data was looked at; none is a count of it."
        ),
        otherwise="A denominator or δ taken from the data's own counts tells who is in it.",
        ensured=(
            "The operator declares the population in the plan; userdp derives every denominator "
            "from the plan alone."
        ),
    ),
    Assumption(
        key="tuning",
        title="Nothing was tuned on this data for free",
        grade=Grade.CRITICAL,
        statement=(
            "Learning rate, clip norm, group size and the number of steps were chosen on public "
            "data, or each trial on this data is charged in the store's ledger."
        ),
        otherwise="Choosing the best of several runs reveals something that no run was charged.",
        ensured="The operator. `userdp account --ledger STORE` adds up all that was charged.",
    ),
    Assumption(
        key="released",
        title="Only what is covered gets out",
        grade=Grade.CRITICAL,
        statement=(
            "Released are the weights, this ledger and public constants. Exact losses, norms, "
            "cohort sizes, checkpoints of interrupted steps and logs stay with the operator."
        ),
        otherwise="An exact loss or count is a statistic of the private text, without noise.",
        ensured=(
            "userdp keeps them in files that only the operator may read; a public report never "
            "opens them."
        ),
    ),
    Assumption(
        key="secret-sampling",
        title="Who was drawn stays secret",
        grade=Grade.CRITICAL,
        statement=(
            "Nobody learns which users or examples joined a step. The price per step counts on "
            "that (amplification by sampling)."
        ),
        otherwise="Without that secrecy each step costs what it would with everybody in it.",
        ensured="Draws are seeded by the operating system, and never stored, logged or released.",
    ),
    Assumption(
        key="base-model",
        title="Base model and tokenizer are independent of this data",
        grade=Grade.CRITICAL,
        statement=(
            "The weights that training began with, the tokenizer and the sequence length were made "
            "without the private text."
        ),
        otherwise="Whatever the base model learned from it is not covered by any ε here.",
        ensured="The operator, who chose the base model.",
    ),
    Assumption(
        key="per-user-preparation",
        title="Each user's records were prepared on their own",
        grade=Grade.CRITICAL,
        statement=(
            "Selection, cuts, splits and de-duplication of a user's records depended on that "
            "user's records and public data only, before userdp saw them as well as in it."
        ),
        otherwise="One user's text would then change what is kept of others.",
        ensured="`userdp prepare` decides by user; what came before it is the operator's part.",
    ),
    Assumption(
        key="honest-run",
        title="The ledger is of the run that made the weights",
        grade=Grade.CRITICAL,
        statement=(
            "The released weights come from the run that wrote this ledger, with userdp unmodified."
        ),
        otherwise="The claim is about other weights.",
        ensured=(
            "Steps are written before they are applied and chained by hashes, which shows "
            "accidents and careless edits. It is no proof against a dishonest operator."
        ),
    ),
    Assumption(
        key="timing",
        title="Nobody watches the clock",
        grade=Grade.THEORETICAL,
        statement=(
            "How long a step took, and the memory it used, are not seen by those from whom the "
            "data is to be protected."
        ),
        otherwise="A step's duration tells the size of its cohort.",
        ensured="The ledger holds no times; the operator keeps the machine to itself.",
    ),
    Assumption(
        key="rounding",
        title="Rounding inside a step",
        grade=Grade.NEGLIGIBLE,
        statement=(
            "The clip aims below the clip norm by a stated margin. With the reference engine the "
            "margin provably covers every rounding error of norms and sums; with the batched "
            "engines (the default) it covers the rounding that was measured, many times over."
        ),
        otherwise="Sensitivity would exceed the clip norm in its last digits.",
        ensured="Tests measure it for every engine; --engine reference has the proof.",
    ),
    Assumption(
        key="accounting",
        title="Numerical accounting",
        grade=Grade.NEGLIGIBLE,
        statement="The accountant answers with an upper bound on ε; every ε here is rounded up.",
        otherwise="The last digit shown would be wrong.",
        ensured="Accountants are tested against independent calculations.",
    ),
    Assumption(
        key="held-out",
        title="Held-out users were not trained on",
        grade=Grade.NEGLIGIBLE,
        statement=(
            "Users on whom the model is evaluated are chosen by a hash of the user and never drawn."
        ),
        otherwise="Losses would look better than they are. ε would not change.",
        ensured="`userdp prepare` keeps them in a split of their own.",
    ),
)

_CAP = Assumption(
    key="cap",
    title="No user has more examples than the cap",
    grade=Grade.CRITICAL,
    statement=(
        "Where examples are sampled (ELS), the training set holds at most group size examples of "
        "each user, chosen without regard to other users."
    ),
    otherwise="A user with more examples would be hit harder than ε says.",
    ensured="userdp caps by a hash of the user when the sampler is built from the plan.",
)

_SCORES = Assumption(
    key="public-scores",
    title="Examples were chosen by a model of public data",
    grade=Grade.CRITICAL,
    statement=(
        "The perplexities by which each user's examples were chosen come from a model that owes "
        "nothing to these users."
    ),
    otherwise="One user's text would decide which examples of another are trained on.",
    ensured="The operator, who chose the model; userdp refuses those of runs on the same store.",
)

_SEVERAL = Assumption(
    key="several-runs",
    title="Each ε is of one run",
    grade=Grade.CRITICAL,
    statement=(
        "The ε beside a run covers that run's weights alone. Who sees several runs on the same "
        "people learns what they tell together."
    ),
    otherwise="Releasing several costs up to the sum of their ε and of their δ.",
    ensured="Release one, or claim the sum. `userdp account --ledger STORE` gives it.",
)

_INTERRUPTED = Assumption(
    key="interruption",
    title="Interruptions did not depend on the data",
    grade=Grade.THEORETICAL,
    statement=(
        "A run here stopped before its last planned step. Its ε counts the steps attempted, and "
        "holds if the moment it stopped was not decided by private results."
    ),
    otherwise="Claim the ε of the whole plan in its place; that one holds whenever it stopped.",
    ensured="The store's ledger keeps the whole plan charged until the run settles.",
)
