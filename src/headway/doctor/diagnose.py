"""From evidence to the whole answer: rules, candidate fixes, their simulation, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence

from headway.doctor.diagnosis import Diagnosis, Fix, ModelCheck, MustNot
from headway.doctor.evidence import Evidence
from headway.doctor.fixes.candidates import candidates, must_not
from headway.doctor.fixes.refusals import forbidden_speculation, with_speculation
from headway.doctor.page.compat_notes import compat_notes
from headway.doctor.page.configuration import read_configuration
from headway.doctor.page.reading import measure_next, read_next
from headway.doctor.page.subject import subject_of
from headway.doctor.prediction.counterfactual import predict
from headway.doctor.rules import case_of, judge_case


def diagnose(evidence: Evidence) -> Diagnosis:
    """Judge a deployment. Never fails for what the evidence says; what could not be used or predicted is noted."""
    case = case_of(evidence)
    figures = case.figures
    findings = judge_case(case)
    compat = compat_notes(evidence.effective)
    check, fixes = _simulated(evidence, candidates(evidence, findings))
    fixes = [with_speculation(fix, figures) for fix in fixes]
    turned_off = {fix.setting for fix in fixes if fix.to_value is None}
    against = [item for item in forbidden_speculation(evidence.effective) if item.setting not in turned_off]
    return Diagnosis(
        subject=subject_of(figures),
        configuration=read_configuration(figures),
        bottlenecks=findings.bottlenecks,
        ruled_out=dict(findings.ruled_out),
        fixes=tuple(fixes),
        must_not=_once([*must_not(evidence, findings), *against]),
        missing=findings.missing,
        compat=compat.notes,
        model_check=check,
        read_next=read_next(figures, findings.bottlenecks),
        measure_next=measure_next(figures, findings.bottlenecks),
        figures=figures.as_mapping(),
        unusable=_untold(evidence.unusable, compat.notes),
        is_clean=_is_clean(findings.first) and compat.is_clean and all(fix.helps is False for fix in fixes),
    )


def _is_clean(first: str | None) -> bool:
    return first in (None, "none", "none_idle")


def _simulated(evidence: Evidence, fixes: Sequence[Fix]) -> tuple[ModelCheck | None, list[Fix]]:
    """The fixes with their predicted effect; without one, and with the reason, where the simulation fails."""
    try:
        return predict(evidence, list(fixes))
    except Exception as error:  # advice that the rules gave is worth more than a traceback of the simulation
        text = str(error) or type(error).__name__
        return ModelCheck({}, {}, None, False, f"The simulation failed: {text}"), list(fixes)


def _untold(unusable: Sequence[str], notes: Sequence[str]) -> tuple[str, ...]:
    """What could not be used, without what the notes on the flags say already."""
    told = " ".join(notes)
    kept = [text for text in unusable if text.removeprefix("The deployment: ").rstrip(".") not in told]
    return tuple(dict.fromkeys(kept))


def _once(found: Sequence[MustNot]) -> tuple[MustNot, ...]:
    """One warning for each setting and reason, in order."""
    return tuple(dict.fromkeys(found))
