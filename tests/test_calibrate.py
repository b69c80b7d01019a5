"""The threshold that calibration finds is the one that decodes in the fewest rounds."""

import torch

from whiflash_engine.training.calibrate import Labels, accepted_tokens, histogram, router_file


def labels(entropy: list[float], eagle3: list[int], dflash: list[int]) -> Labels:
    return Labels(torch.tensor(entropy), torch.tensor(eagle3), torch.tensor(dflash))


def test_rounds_start_where_the_one_before_stopped() -> None:
    part = labels([0.1, 0.1, 3.0, 3.0, 0.1, 0.1], [0, 0, 2, 9, 0, 0], [1, 9, 0, 9, 0, 0])
    # DFlash takes row 1, EAGLE-3 rows 3 and 4, DFlash nothing.
    assert accepted_tokens([part], 1.0) == (3, 3, 1)
    # DFlash alone: row 1, nothing at row 2, past the end from row 3.
    assert accepted_tokens([part], 100.0) == (3, 10, 0)


def test_the_best_threshold_separates_the_drafters() -> None:
    sure = labels([0.02] * 12, [0] * 12, [3] * 12)
    unsure = labels([2.2] * 12, [2] * 12, [0] * 12)
    found = router_file([sure, unsure])
    assert 0.02 <= found["entropy_threshold_nats"] < 2.2
    best = max(point["mean_acceptance_length"] for point in found["sweep"])
    assert best > found["sweep"][0]["mean_acceptance_length"]
    assert best > found["sweep"][-1]["mean_acceptance_length"]
    assert found["sweep"][0]["eagle3_share"] == 1.0
    assert found["sweep"][-1]["eagle3_share"] == 0.0


def test_the_histogram_covers_every_round() -> None:
    shares = histogram([labels([0.0, 0.2, 9.0, 0.24], [0] * 4, [0] * 4)])
    assert shares["<= 0.01"] == 0.25
    assert shares["<= 0.25"] == 0.5
    assert shares["> 4"] == 0.25
    assert sum(shares.values()) == 1.0
