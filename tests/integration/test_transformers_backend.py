"""The transformers backend behind the worker's own handlers, against plain transformers."""

from __future__ import annotations

import binascii
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.support.chain import Chain, Stage, carried
from tests.support.tiny import tiny_checkpoint
from tests.support.tokenizers import CHATML, byte_tokenizer
from worker.backends.base import OutOfDeviceMemory
from worker.backends.transformers.memory_failures import memory_failures
from worker.failures import LoadFailed
from worker.protocol import events
from worker.protocol.exits import ExitCode
from worker.protocol.ops import (
    EmbedAndForward,
    ForwardAndSample,
    ForwardRange,
    GenerateFull,
    HiddenReply,
    Release,
    Tokenize,
)
from worker.protocol.payload import encode_base64
from worker.protocol.schema import ErrorCode, ProtocolError

LAYERS = 6
VOCAB = 300
PROMPT = [9, 45, 12, 77, 130, 8, 201]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_checkpoint(tmp_path_factory.mktemp("llama"), "llama", vocab_size=VOCAB)
    byte_tokenizer(chat_template=CHATML).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def chain(llama: Path) -> Chain:
    return Chain(llama, (0, 2, 4, LAYERS))


def reference(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    return model.eval()


def reference_answer(folder: Path, prompt: list[int], max_new_tokens: int) -> list[int]:
    """Generate greedily with the whole model, past end tokens."""
    output = reference(folder).generate(
        torch.tensor([prompt]),
        do_sample=False,
        max_new_tokens=max_new_tokens,
        min_new_tokens=max_new_tokens,
        suppress_tokens=None,
        eos_token_id=-1,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


def hidden_rows(reply: HiddenReply, width: int) -> torch.Tensor:
    data = bytearray(binascii.a2b_base64(reply.hidden_b64))
    dtype = torch.float32 if reply.hidden_dtype == "float32" else torch.bfloat16
    return torch.frombuffer(data, dtype=dtype).reshape(-1, reply.seq_len, width)


def refused(act: Callable[[], Any]) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        act()
    return caught.value


@pytest.mark.demo_model
def test_hidden_states_at_the_cut_are_those_of_the_whole_model(demo_model_path: Path) -> None:
    prompt = list(range(400, 440))
    stage = Stage(demo_model_path, 0, 15, max_context=64)
    reply = stage.call(EmbedAndForward(request_id=1, tokens=tuple(prompt)))
    with torch.inference_mode():
        whole = reference(demo_model_path)(torch.tensor([prompt]), output_hidden_states=True)
    assert torch.equal(hidden_rows(reply, 576), whole.hidden_states[15])


def test_three_stages_answer_as_the_whole_model(chain: Chain, llama: Path) -> None:
    assert chain.answer(1, PROMPT, 12) == reference_answer(llama, PROMPT, 12)


def test_one_stage_answers_as_three(chain: Chain, llama: Path) -> None:
    whole = Chain(llama, (0, LAYERS))
    sampling = {"temperature": 1.0, "seed": 3, "logprobs": True, "top_logprobs": 5}
    for position, tokens in ((0, PROMPT), (7, [33]), (8, [34, 35])):
        split = chain.forward(2, tokens, position, **sampling)
        assert whole.forward(2, tokens, position, **sampling) == split


def test_interleaved_requests_answer_as_each_alone(chain: Chain) -> None:
    prompts = {10: PROMPT, 11: PROMPT[:3], 12: [5] * 20}
    alone = {rid: chain.answer(rid, prompt, 6) for rid, prompt in prompts.items()}
    woven: dict[int, list[int]] = {rid: [] for rid in prompts}
    for step in range(6):
        for rid, prompt in prompts.items():
            tokens = prompt if step == 0 else woven[rid][-1:]
            position = 0 if step == 0 else len(prompt) + step - 1
            woven[rid].append(chain.forward(rid, tokens, position).token_id or 0)
    assert woven == alone


def test_a_shorter_request_under_the_same_id_starts_anew(chain: Chain) -> None:
    fresh = chain.answer(20, PROMPT[:2], 4)
    chain.answer(21, PROMPT * 3, 4)
    assert chain.answer(21, PROMPT[:2], 4) == fresh


def test_going_back_gives_the_same_bits(chain: Chain) -> None:
    chain.forward(30, PROMPT, 0)
    steps = [chain.first(30, [token], 7 + i) for i, token in enumerate((50, 51, 52))]
    again = [chain.first(30, [token], 8 + i) for i, token in enumerate((51, 52))]
    assert again == steps[1:]


def test_a_left_padded_batch_answers_as_transformers(llama: Path) -> None:
    chain = Chain(llama, (0, 3, LAYERS))
    rows = [PROMPT, [0, 0, 0, 9, 45, 12, 77], [0, 0, 0, 0, 0, 0, 130]]
    mask = torch.tensor([[0 if t == 0 else 1 for t in row] for row in rows])
    output = reference(llama).generate(
        torch.tensor(rows),
        attention_mask=mask,
        do_sample=False,
        max_new_tokens=6,
        eos_token_id=-1,
        pad_token_id=0,
    )
    expected = output[:, len(PROMPT) :].T.tolist()
    flat = [token for row in rows for token in row]
    reply = chain.forward(1, flat, 0, batch=3, mask=bytes(mask.to(torch.uint8).flatten().tolist()))
    found = [list(reply.token_ids or ())]
    while len(found) < 6:
        reply = chain.forward(1, found[-1], len(PROMPT) + len(found) - 1, batch=3)
        found.append(list(reply.token_ids or ()))
    assert found == expected


def test_generate_full_is_generate_with_the_same_chunks(llama: Path) -> None:
    stage = Stage(llama, 0, LAYERS)
    prompt = "A longer prompt, in several chunks."
    tokens = stage.call(Tokenize(prompt=prompt)).tokens
    expected = reference(llama).generate(
        torch.tensor([tokens]),
        do_sample=False,
        max_new_tokens=8,
        prefill_chunk_size=10,
        eos_token_id=-1,
    )
    reply = stage.call(GenerateFull(prompt=prompt, max_tokens=8, prefill_chunk=10, ignore_eos=True))
    assert list(reply.tokens) == expected[0, len(tokens) :].tolist()
    error = refused(lambda: stage.call(GenerateFull(prompt=prompt, max_tokens=250)))
    assert error.code is ErrorCode.CONTEXT_FULL and "250" in error.text and "256" in error.text


@pytest.mark.parametrize("token", [VOCAB, 10**30])
def test_an_id_outside_the_vocabulary_is_named_with_the_limit(chain: Chain, token: int) -> None:
    error = refused(lambda: chain.forward(40, [1, token], 0))
    assert error.code is ErrorCode.BAD_FIELD
    assert str(token) in error.text and "index 1" in error.text and str(VOCAB - 1) in error.text


def test_options_of_sampling_reach_the_last_stage(chain: Chain) -> None:
    def draw(rid: int, **options: Any) -> int:
        return chain.forward(rid, PROMPT, 0, **options).token_id or 0

    greedy = draw(50)
    assert draw(51, suppress_tokens=(greedy,)) != greedy
    assert draw(52, repetition_penalty=1000.0, penalty_tokens=(greedy,)) != greedy
    hot = [draw(53, temperature=5.0, seed=seed) for seed in range(8)]
    assert len(set(hot)) > 2 and hot == [draw(54, temperature=5.0, seed=s) for s in range(8)]
    assert [draw(55, temperature=5.0, top_k=1, seed=s) for s in range(3)] == [greedy] * 3
    assert chain.forward(56, PROMPT, 0, sample=False).token_id is None


def test_a_chunk_that_asks_for_no_token_does_without_the_head(chain: Chain) -> None:
    seen: list[bool] = []
    head = chain.stages[-1].backend._runner.loaded.model.lm_head
    hook = head.register_forward_hook(lambda *_: seen.append(True))
    try:
        chain.forward(57, PROMPT, 0, sample=False)
        before = len(seen)
        chain.forward(57, PROMPT, len(PROMPT))
    finally:
        hook.remove()
    assert (before, len(seen)) == (0, 1)


def test_release_frees_the_cache(chain: Chain) -> None:
    chain.forward(60, PROMPT, 0)
    held = [stage.call(Release(request_id=60)).released for stage in chain.stages]
    assert held == [True] * 3
    error = refused(lambda: chain.forward(60, [1], len(PROMPT)))
    assert error.code is ErrorCode.NO_SESSION


def test_hidden_states_that_are_no_numbers_are_found_where_they_arise(llama: Path) -> None:
    chain = Chain(llama, (0, 3, LAYERS))
    good = chain.forward(1, PROMPT, 0, logprobs=True)
    norm = chain.stages[0].backend._runner.loaded.model.model.layers[1].input_layernorm
    kept = norm.weight.detach().clone()
    with torch.no_grad():
        norm.weight.fill_(torch.nan)
    error = refused(lambda: chain.first(1, [8], len(PROMPT)))
    assert error.code is ErrorCode.INTERNAL and "layers 0:3" in error.text
    with torch.no_grad():
        norm.weight.copy_(kept)
    chain.first(1, [8], len(PROMPT))
    assert chain.forward(2, PROMPT, 0, logprobs=True) == good


@pytest.mark.parametrize("sample", [True, False])
def test_broken_numbers_from_the_wire_leave_the_session_as_it_was(
    chain: Chain, sample: bool
) -> None:
    chain.forward(65, PROMPT, 0)
    rest: dict[str, Any] = {"request_id": 65, "position": len(PROMPT), "seq_len": 1}
    good = chain.first(65, [33], len(PROMPT)).hidden_b64
    good = chain.stages[1].call(ForwardRange(**rest, hidden_b64=good)).hidden_b64
    broken = encode_base64(b"\xc0\x7f" * 64)
    last = chain.stages[2]
    error = refused(lambda: last.call(ForwardAndSample(**rest, sample=sample, hidden_b64=broken)))
    assert error.code is ErrorCode.INTERNAL and "nan" in error.text
    assert last.call(ForwardAndSample(**rest, hidden_b64=good)).token_id is not None


def test_a_hidden_state_of_another_shape_is_refused(chain: Chain) -> None:
    hidden = carried(chain.first(70, PROMPT, 0))
    hidden["hidden_shape"] = (7, 1, 64)
    request = ForwardAndSample(request_id=70, position=0, **hidden)
    error = refused(lambda: chain.stages[-1].call(request))
    assert error.code is ErrorCode.BAD_FIELD and "[1, 7, 64]" in error.text


def test_a_model_that_needs_ids_on_every_stage_says_so(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, "gemma3n_text")
    chain = Chain(folder, (0, 2, LAYERS))
    assert [stage.backend.facts.needs_tokens for stage in chain.stages] == [True, True]
    prompt = [9, 45, 12]
    assert chain.answer(1, prompt, 4) == reference_answer(folder, prompt, 4)
    hidden = chain.first(2, prompt, 0)
    request = ForwardAndSample(request_id=2, position=0, **carried(hidden))
    error = refused(lambda: chain.stages[-1].call(request))
    assert error.code is ErrorCode.BAD_FIELD and "'tokens' holds none of the 3" in error.text


def test_a_float32_residual_crosses_the_wire_as_float32(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, "mamba")
    chain = Chain(folder, (0, 3, LAYERS), max_context=32)
    assert chain.stages[0].backend.facts.hidden_dtype == "float32"
    prompt = [9, 45, 12, 77]
    assert chain.answer(1, prompt, 6) == reference_answer(folder, prompt, 6)


def test_a_recurrent_state_goes_back_one_op_and_says_so_beyond(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, "mamba", vocab_size=VOCAB)
    chain = Chain(folder, (0, 3, LAYERS), max_context=32)
    assert "crop" not in chain.stages[0].backend.facts.capabilities
    chain.forward(1, PROMPT, 0)
    steps = [chain.forward(1, [token], 7 + i, logprobs=True) for i, token in enumerate((5, 6))]
    assert chain.forward(1, [6], 8, logprobs=True) == steps[1]
    error = refused(lambda: chain.forward(1, [6], 3))
    assert error.code is ErrorCode.BAD_POSITION and "start" in error.text


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("out"),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_a_lack_of_memory_is_told_apart(error: Exception) -> None:
    with pytest.raises(OutOfDeviceMemory), memory_failures():
        raise error
    with pytest.raises(RuntimeError, match="other"), memory_failures():
        raise RuntimeError("other")


def test_opening_tells_every_step_in_order(chain: Chain) -> None:
    assert [type(event) for event in chain.stages[1].events] == [
        *(events.Importing, events.Imported) * 3,
        events.Device,
        events.FetchingModel,
        events.MemoryCheck,
        events.CacheHit,
        events.ModelFetched,
        events.LoadingModel,
        events.ModelLoadBreakdown,
        events.ModelLoaded,
    ]


def test_facts_name_what_the_stage_is(chain: Chain, llama: Path) -> None:
    first, middle, last = (stage.backend.facts for stage in chain.stages)
    assert {f.hidden_dim for f in (first, middle, last)} == {64}
    assert {f.max_context for f in (first, middle, last)} == {256}
    assert {f.vocab_size for f in (first, middle, last)} == {VOCAB}
    assert "chat_template" in first.capabilities and "chat_template" not in middle.capabilities
    assert "sampling" in last.capabilities and "sampling" not in first.capabilities
    assert {"padding", "crop"} <= set(middle.capabilities)
    assert set(middle.eos_token_ids) < set(first.eos_token_ids)


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_a_folder_without_tokenizer_serves_all_but_text(tmp_path: Path, model_type: str) -> None:
    folder = tiny_checkpoint(tmp_path, model_type)
    chain = Chain(folder, (0, LAYERS))
    assert chain.answer(1, [9, 45, 12], 4) == reference_answer(folder, [9, 45, 12], 4)
    assert refused(lambda: chain.stages[0].call(Tokenize(prompt="x"))).code is ErrorCode.UNKNOWN_OP
    assert "tokenizer" not in chain.stages[0].backend.facts.capabilities


def test_only_stages_that_should_serve_text_note_that_there_is_none(tmp_path: Path) -> None:
    chain = Chain(tiny_checkpoint(tmp_path, "llama"), (0, 2, 4, LAYERS))
    loaded = [stage.events[-1] for stage in chain.stages]
    assert all(isinstance(event, events.ModelLoaded) for event in loaded)
    mute = f"No text on this stage: there are no tokenizer files in {tmp_path}."
    notes = [getattr(event, "notes", ()) for event in loaded]
    assert [[note for note in own if "text" in note] for own in notes] == [[mute], [], [mute]]


@pytest.mark.parametrize(
    ("slice_", "config", "code", "words"),
    [
        ((0, 99), {}, ExitCode.USAGE, "0:6"),
        ((0, 6), {"max_context": 257}, ExitCode.USAGE, "256"),
        ((0, 6), {"revision": "main"}, ExitCode.USAGE, "local folder"),
        ((0, 6), {"memory_limit_bytes": 1 << 20}, ExitCode.OUT_OF_MEMORY, "KV cache"),
    ],
)
def test_what_cannot_be_opened_is_one_sentence_and_an_exit_code(
    llama: Path, slice_: tuple[int, int], config: dict[str, Any], code: ExitCode, words: str
) -> None:
    with pytest.raises(LoadFailed) as caught:
        Stage(llama, *slice_, **config)
    assert caught.value.code is code and words in caught.value.text
    assert "\n" not in caught.value.text


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    for missing, words in ((tmp_path / "nothing", "no folder"), (tmp_path, "config.json")):
        with pytest.raises(LoadFailed, match=words) as caught:
            Stage(missing, 0, 6)
        assert caught.value.code is ExitCode.LOAD_FAILED


def test_broken_weights_are_named(llama: Path, tmp_path: Path) -> None:
    for file in llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(LoadFailed, match="LFS") as caught:
        Stage(tmp_path, 0, 6)
    assert caught.value.code is ExitCode.LOAD_FAILED
