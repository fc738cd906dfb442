"""`raptor prune --epochs`: what is left of a pruned model learns the outputs of the model as given."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from models.trained import MODEL, load_images
from raptor.graph.layers import tile_channels
from raptor.target import arch
from raptor.tools.prune.prune_model import prune_model

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
torch: Any = pytest.importorskip("torch")


def test_outputs_come_nearer_and_zeros_stay(tmp_path: Path):
    from raptor.tools.prune.distil_model import DistillationSchedule, distil_model

    torch.set_num_threads(1)
    np.savez(tmp_path / "seen.npz", image=load_images()[0].pixels[:300])
    target, losses = arch.load("bench", xbar=16, cores=64), list[float]()
    given = (str(MODEL), target, tile_channels(target), 0.5, "raptor", tmp_path / "seen.npz")
    train = partial(distil_model, schedule=DistillationSchedule(25), tick=lambda _, loss: losses.append(loss))
    plain, trained = prune_model(*given), prune_model(*given, refine=train)
    assert plain.error is not None
    assert trained.error is not None
    assert trained.error < plain.error  # with few samples, mostly what they have improves
    assert len(losses) == 25
    assert losses[-1] < 0.5 * losses[0]
    values = {t.name: onnx.numpy_helper.to_array(t) for t in trained.model.graph.initializer}
    assert trained.masks
    for name, mask in trained.masks.items():
        assert not values[name][~mask].any()
        assert values[name][mask].all()
    again = prune_model(*given, refine=train)
    assert again.model.SerializeToString() == trained.model.SerializeToString()
