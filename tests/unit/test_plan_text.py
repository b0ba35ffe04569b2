"""What a plan says of the choice."""

from __future__ import annotations

import dataclasses

import numpy as np

import gemmule as gm

A = np.ones((16, 16), np.float32)


def test_a_plan_without_a_kernel_says_nothing_of_a_choice():
    plan = gm.plan(A, A, executor="host")
    assert (plan.chosen_by, plan.chosen_from, plan.predicted_us) == ("", "", None)
    assert "chosen by" not in str(plan)


def test_a_plan_says_what_chose_and_what_is_expected():
    plan = gm.plan(A, A, executor="vgpu")
    assert plan.chosen_by == "only one"
    assert "chosen by: only one\n" in f"{plan}\n"
    # The refused ones come with their reasons.
    assert (
        "hopper_gemm",
        "A and B are float32; this kernel rounds them to TF32, for precision='tf32'",
    ) in plan.refused
    tuned = dataclasses.replace(plan, chosen_by="tuned", chosen_from="tuned.json: H200, today", predicted_us=9.04)
    assert "chosen by: tuned (tuned.json: H200, today); 9.0 us expected\n" in str(tuned)
    predicted = dataclasses.replace(plan, chosen_by="cost", predicted_us=12.0)
    assert "chosen by: cost; 12.0 us expected\n" in str(predicted)
