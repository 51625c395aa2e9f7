"""One contract, every backend: what the primitives promise to the handlers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from worker.backends.base import CannotCrop, Draw, Part, Placement, StageBackend
from worker.backends.stub import NUM_LAYERS, StubBackend
from worker.config import WorkerConfig
from worker.protocol.ops import Sampling
from worker.protocol.payload import BYTES_PER_ELEMENT, Hidden
from worker.protocol.schema import ErrorCode, ProtocolError
from worker.protocol.stage import StageSlice

TOKENS = (5, 6, 7, 8)
GREEDY = Sampling()


@dataclass(frozen=True)
class Stages:
    """The same model as three stages and as one."""

    first: StageBackend[Any]
    middle: StageBackend[Any]
    last: StageBackend[Any]
    whole: StageBackend[Any]

    @property
    def all(self) -> tuple[StageBackend[Any], ...]:
        return (self.first, self.middle, self.last, self.whole)


def stub_stages() -> Stages:
    bounds = ((0, 40), (40, 80), (80, NUM_LAYERS), (0, NUM_LAYERS))
    return Stages(*(StubBackend(StageSlice(a, b, NUM_LAYERS)) for a, b in bounds))


def transformers_stages(folder: Path) -> Stages:
    from tests.support.tiny import tiny_checkpoint
    from worker.backends.transformers import open_stage

    tiny_checkpoint(folder, "llama")

    def opened(start: int, end: int) -> StageBackend[Any]:
        config = WorkerConfig(
            model_id=str(folder), shard_start=start, shard_end=end, device="cpu", threads=1
        )
        return open_stage(config, lambda event: None)[1]

    return Stages(opened(0, 2), opened(2, 4), opened(4, 6), opened(0, 6))


@pytest.fixture(scope="module", params=["stub", "transformers"])
def stages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stages:
    if request.param == "stub":
        return stub_stages()
    return transformers_stages(tmp_path_factory.mktemp("contract"))


def place(position: int, seq_len: int, batch: int = 1) -> Placement:
    return Placement(position=position, batch=batch, seq_len=seq_len)


def enter(backend: StageBackend[Any], tokens: tuple[int, ...], cache: Any, position: int) -> Hidden:
    """Run tokens through a first stage."""
    placement = place(position, len(tokens))
    outputs = backend.forward(backend.embed(tokens, placement), cache, placement)
    return backend.dump(outputs, placement)


def through(backend: StageBackend[Any], hidden: Hidden, cache: Any, position: int) -> Hidden:
    """Run hidden states through a middle stage."""
    placement = place(position, hidden.seq_len, hidden.batch)
    outputs = backend.forward(backend.load(hidden, None), cache, placement)
    return backend.dump(outputs, placement)


def sampled(backend: StageBackend[Any], hidden: Hidden, cache: Any, position: int) -> int:
    """Run hidden states through a last stage and choose."""
    placement = place(position, hidden.seq_len, hidden.batch)
    outputs = backend.forward(backend.load(hidden, None), cache, placement)
    (token,) = backend.sample(outputs, GREEDY, placement).token_ids
    return token


def stepped(backend: StageBackend[Any], part: Part[Any]) -> Any:
    """Run one part as steps."""
    (outputs,) = backend.forward_together([part])
    assert not isinstance(outputs, Exception)
    return outputs


def chosen_after(backend: StageBackend[Any], part: Part[Any]) -> list[int]:
    """Run one part as steps on a last stage, and choose after its last rows."""
    first = part.placement.position + part.placement.seq_len - part.choices
    (chosen,) = backend.choose([Draw(stepped(backend, part), (GREEDY,) * part.choices, first)])
    assert not isinstance(chosen, Exception)
    return [sampled.token_ids[0] for sampled in chosen]


def row_of(hidden: Hidden, i: int) -> Hidden:
    """Cut one position out of hidden states."""
    size = len(hidden.data) // hidden.seq_len
    shape = (1, 1, hidden.shape[2])
    return Hidden(hidden.data[i * size : (i + 1) * size], shape, hidden.dtype, 1, 1)


class Walk:
    """A request on its way through the three stages."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        self.caches = [b.new_cache(1) for b in (stages.first, stages.middle, stages.last)]

    def prefill(self, tokens: tuple[int, ...]) -> None:
        """Run the tokens in one op each."""
        hidden = enter(self.stages.first, tokens, self.caches[0], 0)
        hidden = through(self.stages.middle, hidden, self.caches[1], 0)
        sampled(self.stages.last, hidden, self.caches[2], 0)

    def as_steps(self, tokens: tuple[int, ...], position: int) -> tuple[bytes, bytes, int]:
        """Run the tokens in one op a stage; give both hidden states and the last choice."""
        first, middle, last = self.stages.first, self.stages.middle, self.stages.last
        placement = place(position, len(tokens))
        inputs = first.embed(tokens, placement)
        one = first.dump(stepped(first, Part(inputs, self.caches[0], placement)), placement)
        outputs = stepped(middle, Part(middle.load(one, None), self.caches[1], placement))
        two = middle.dump(outputs, placement)
        part = Part(last.load(two, None), self.caches[2], placement, 1)
        return one.data, two.data, chosen_after(last, part)[0]

    def one_by_one(self, tokens: tuple[int, ...], position: int) -> tuple[bytes, bytes, int]:
        """Run the tokens in an op each."""
        one = two = b""
        token = -1
        for i, each in enumerate(tokens, position):
            first = enter(self.stages.first, (each,), self.caches[0], i)
            second = through(self.stages.middle, first, self.caches[1], i)
            token = sampled(self.stages.last, second, self.caches[2], i)
            one, two = one + first.data, two + second.data
        return one, two, token


class TestContract:
    """What every backend keeps."""

    def test_all_stages_agree_on_the_wire(self, stages: Stages) -> None:
        facts = {(b.facts.hidden_dim, b.facts.hidden_dtype, b.facts.vocab_size) for b in stages.all}
        assert len(facts) == 1
        assert all("ping" in b.facts.capabilities for b in stages.all)

    @pytest.mark.parametrize("n", [1, 3])
    def test_hidden_states_have_the_announced_size(self, stages: Stages, n: int) -> None:
        first = enter(stages.first, TOKENS[:n], stages.first.new_cache(1), 0)
        second = through(stages.middle, first, stages.middle.new_cache(1), 0)
        facts = stages.first.facts
        for hidden in (first, second):
            assert hidden.shape == (1, n, facts.hidden_dim)
            size = prod(hidden.shape) * BYTES_PER_ELEMENT[facts.hidden_dtype]
            assert (len(hidden.data), hidden.batch, hidden.seq_len) == (size, 1, n)

    def test_the_same_input_gives_the_same_bytes(self, stages: Stages) -> None:
        runs = [enter(stages.first, TOKENS, stages.first.new_cache(1), 0) for _ in range(2)]
        assert runs[0] == runs[1]

    def test_other_tokens_give_other_bytes(self, stages: Stages) -> None:
        backend = stages.first
        runs = [
            enter(backend, tokens, backend.new_cache(1), 0) for tokens in (TOKENS, (9, 9, 9, 9))
        ]
        assert runs[0].data != runs[1].data

    def test_a_step_that_is_taken_back_and_repeated_gives_the_same_bytes(
        self, stages: Stages
    ) -> None:
        backend = stages.first
        cache = backend.new_cache(1)
        enter(backend, TOKENS, cache, 0)
        once = enter(backend, (9,), cache, 4)
        try:
            cache.crop(4)
        except CannotCrop:
            pytest.fail("a llama and the stub can go back")
        assert enter(backend, (9,), cache, 4) == once

    def test_a_cache_counts_its_positions(self, stages: Stages) -> None:
        backend = stages.first
        cache = backend.new_cache(1)
        enter(backend, TOKENS, cache, 0)
        enter(backend, (9,), cache, 4)
        assert cache.length == (5 if backend.keeps_caches else 0)
        assert (cache.size_bytes > 0) == backend.keeps_caches

    def test_the_chosen_token_is_in_the_vocabulary_and_the_same_again(self, stages: Stages) -> None:
        hidden = enter(stages.first, TOKENS, stages.first.new_cache(1), 0)
        hidden = through(stages.middle, hidden, stages.middle.new_cache(1), 0)
        tokens = [sampled(stages.last, hidden, stages.last.new_cache(1), 0) for _ in range(2)]
        assert tokens[0] == tokens[1]
        assert 0 <= tokens[0] < stages.last.facts.vocab_size

    def test_a_batch_samples_one_token_for_each_sequence(self, stages: Stages) -> None:
        placement = place(0, 2, batch=2)
        first, last = stages.first, stages.last
        outputs = first.forward(first.embed(TOKENS, placement), first.new_cache(2), placement)
        hidden = first.dump(outputs, placement)
        assert hidden.shape == (2, 2, first.facts.hidden_dim)
        outputs = last.forward(last.load(hidden, None), last.new_cache(2), placement)
        assert len(last.sample(outputs, GREEDY, placement).token_ids) == 2

    def test_positions_as_steps_give_what_ops_of_one_position_give(self, stages: Stages) -> None:
        assert all("as_steps" in b.facts.capabilities for b in stages.all)
        steps, singly = (Walk(stages) for _ in range(2))
        for walk in (steps, singly):
            walk.prefill(TOKENS)
        tokens = tuple(range(20, 60))
        assert steps.as_steps(tokens, 4) == singly.one_by_one(tokens, 4)
        assert steps.one_by_one((9,), 44) == singly.one_by_one((9,), 44)

    def test_steps_from_position_0_begin_with_a_prefill_of_one(self, stages: Stages) -> None:
        assert Walk(stages).as_steps(TOKENS, 0) == Walk(stages).one_by_one(TOKENS, 0)

    def test_a_whole_model_samples_the_last_steps_from_its_own_hidden_states(
        self, stages: Stages
    ) -> None:
        whole = stages.whole
        placement = place(0, 4)
        inputs = whole.embed(TOKENS, placement)
        outputs = stepped(whole, Part(inputs, whole.new_cache(1), placement))
        hidden = whole.dump(outputs, placement)
        assert hidden.shape[1] == 4
        tokens = chosen_after(whole, Part(whole.load(hidden, None), None, placement, 3))
        assert tokens == [sampled(whole, row_of(hidden, i), None, i) for i in (1, 2, 3)]

    def test_a_whole_model_samples_from_its_own_hidden_states(self, stages: Stages) -> None:
        whole = stages.whole
        cache = whole.new_cache(1)
        hidden = enter(whole, TOKENS, cache, 0)
        length = cache.length
        assert 0 <= sampled(whole, hidden, None, 0) < whole.facts.vocab_size
        assert cache.length == length

    def test_warming_up_changes_nothing(self, stages: Stages) -> None:
        before = enter(stages.first, TOKENS, stages.first.new_cache(1), 0)
        stages.first.warm_up()
        assert enter(stages.first, TOKENS, stages.first.new_cache(1), 0) == before

    def test_ids_outside_the_vocabulary_are_refused_with_index_id_and_limit(
        self, stages: Stages
    ) -> None:
        backend = stages.first
        backend.check_tokens(TOKENS)
        if not backend.keeps_caches:
            backend.check_tokens((10**30,))  # The stub takes any id; its tokenizer makes such.
            return
        limit = backend.facts.vocab_size
        for bad in (limit, 10**30):
            with pytest.raises(ProtocolError) as caught:
                backend.check_tokens((1, bad))
            assert caught.value.code is ErrorCode.BAD_FIELD
            numbers = (1, bad, limit - 1)  # Index, id, the largest id.
            assert [n for n in numbers if str(n) not in caught.value.text] == []

    def test_hidden_states_of_another_shape_are_refused(self, stages: Stages) -> None:
        hidden = enter(stages.first, TOKENS, stages.first.new_cache(1), 0)
        bent = replace(hidden, shape=(1, 2, 2 * stages.first.facts.hidden_dim))
        with pytest.raises(ProtocolError) as caught:
            stages.middle.load(bent, None)
        assert caught.value.code is ErrorCode.BAD_FIELD

    def test_text_ops_answer_or_say_what_is_missing(self, stages: Stages) -> None:
        for backend in (stages.first, stages.whole):
            try:
                tokens = backend.tokenize("Hello there", None)
                text = backend.detokenize(tokens)
            except ProtocolError as error:
                assert "tokenizer" in error.text
                assert "tokenizer" not in backend.facts.capabilities
            else:
                assert tokens and isinstance(text, str)

    def test_a_vocabulary_has_every_id_or_the_tokenizer_lacks(self, stages: Stages) -> None:
        for backend in (stages.first, stages.whole):
            try:
                known = backend.vocabulary()
            except ProtocolError as error:
                assert "tokenizer" in error.text
                assert "vocabulary" not in backend.facts.capabilities
            else:
                assert len(known.pieces) == backend.facts.vocab_size
                assert "vocabulary" in backend.facts.capabilities

    def test_a_row_is_scored_by_what_the_next_token_is_chosen_from(self, stages: Stages) -> None:
        hidden = enter(stages.first, (9,), stages.first.new_cache(1), 0)
        hidden = through(stages.middle, hidden, stages.middle.new_cache(1), 0)
        last, placement = stages.last, place(0, 1)
        inputs = last.load(hidden, None)
        outputs = last.forward(inputs, last.new_cache(1), placement, every_row=True)
        options = Sampling(logprobs=True, top_logprobs=3)
        chosen = last.sample(outputs, options, placement)
        (scored,) = last.score(outputs, chosen.token_ids, 3, placement)
        plain = last.forward(inputs, last.new_cache(1), placement)
        assert last.sample(plain, options, placement) == chosen
        assert (scored.logprob, scored.top_tokens) == (chosen.logprob, chosen.top_tokens)
        assert scored.top_logprobs == chosen.top_logprobs

    def test_only_a_whole_real_model_generates(self, stages: Stages) -> None:
        with pytest.raises(ProtocolError):
            stages.first.generate("x", 1, 8, True)
