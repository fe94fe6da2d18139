"""Models of `transformers`, adapted by `peft`, made from small configurations: nothing is
downloaded."""

import copy

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as functional

import lastiterate as li
from lastiterate.errors import InputError
from lastiterate.torch.module_training import fit_module

transformers, peft = None, None


@pytest.fixture(scope="module", autouse=True)
def libraries():
    """Import both where their tests run: collecting them needs neither, and they take seconds."""
    for name in ("transformers", "peft"):
        globals()[name] = pytest.importorskip(
            name, reason="transformers and peft are installed beside torch"
        )


N, LENGTH, WORDS = 12, 7, 40
IDS = np.random.default_rng(0).integers(0, WORDS, (N, LENGTH))
SEEN = (np.arange(LENGTH) < 4 + np.arange(N)[:, None] % 4).astype(np.int64)
Y = np.arange(N) % 3
SMALL = dict(
    vocab_size=WORDS,
    max_position_embeddings=16,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
)
RUN = li.Run(
    n=N,
    steps=2,
    step_size=0.1,
    noise=li.NoiseMultiplier(1.0),
    clip=0.5,
    batching=li.RandomAllocation(6),
)


def adapted(model, task):
    """With factors of which none is 0 at the start, so that every gradient is looked at."""
    config = peft.LoraConfig(task_type=task, r=2, lora_alpha=4, init_lora_weights=False)
    return peft.get_peft_model(model, config).eval()


def writer():
    """Predicts the next word; its table is tied to its head."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    return adapted(transformers.GPT2LMHeadModel(config), "CAUSAL_LM")


def reader():
    torch.manual_seed(0)
    config = transformers.BertConfig(**SMALL, intermediate_size=32, num_labels=3)
    return adapted(transformers.BertForSequenceClassification(config), "SEQ_CLS")


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SMALL, intermediate_size=32, num_key_value_heads=1)
    return adapted(transformers.LlamaForCausalLM(config), "CAUSAL_LM")


TEXTS = {"input_ids": IDS, "attention_mask": SEEN, "labels": np.where(SEEN == 1, IDS, -100)}
ANSWERS = {"input_ids": IDS, "attention_mask": SEEN, "labels": Y}


def own_loss(output):
    return output.loss


@pytest.mark.parametrize(("make", "records"), [(writer, TEXTS), (reader, ANSWERS), (llama, TEXTS)])
def test_one_step_is_the_sum_of_gradients_that_were_clipped_one_by_one(make, records):
    model, clip, scales = make(), 0.3, []
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    total = dict.fromkeys(trained, 0.0)
    for i in range(N):
        one = {name: torch.from_numpy(part[i : i + 1]) for name, part in records.items()}
        slopes = torch.autograd.grad(model(**one).loss, list(trained.values()))
        scales.append(
            min(1.0, clip / float(torch.sqrt(sum((slope.double() ** 2).sum() for slope in slopes))))
        )
        for name, slope in zip(trained, slopes, strict=True):
            total[name] = total[name] + scales[-1] * slope
    assert min(scales) < 1.0
    run = li.Run(n=N, steps=1, step_size=0.7, noise=li.GradientNoise(0.0), clip=clip)
    parameters, theta = fit_module(run, model, own_loss, records)
    for name, tensor in parameters.restore_precision(theta).items():
        torch.testing.assert_close(
            tensor, trained[name].detach() - 0.7 * total[name] / N, rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize(("make", "records"), [(writer, TEXTS), (reader, ANSWERS)])
def test_what_was_adapted_changed_and_the_model_answers(make, records, tmp_path):
    first = make()
    before = copy.deepcopy(first.state_dict())
    model = li.train(RUN, records, model=first, loss=own_loss)
    after = model.module.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == set(model.state) and all(
        "lora_" in name or "modules_to_save" in name for name in changed
    )
    assert any("bit for bit" in caveat for caveat in model.certificate.caveats)
    found = model.predict(records)
    assert set(found) == {"logits"} and len(found["logits"]) == N
    again = li.load(model.save(tmp_path / "m"), like=first)
    np.testing.assert_array_equal(again.predict(records)["logits"], found["logits"])
    assert set(peft.get_peft_model_state_dict(model.module)), "what peft saves is there"
    file = model.to_safetensors(tmp_path / "m.safetensors")
    fresh = make()
    fresh.load_state_dict(safetensors.torch.load_file(file), strict=False)  # without this library
    with torch.no_grad():
        logits = fresh(**{name: torch.from_numpy(part) for name, part in records.items()}).logits
    np.testing.assert_allclose(logits.numpy(), found["logits"], atol=1e-5)
    assert li.verify(file).holds
    with pytest.raises(InputError, match="forward pass of networks and modules is your code"):
        model.to_skops(tmp_path / "m.skops")


def test_all_parameters_of_a_tied_model_and_authors_of_several_texts():
    """A table that is also the head has one gradient; an author's texts are bounded, and charged as
    a group."""
    model = writer().merge_and_unload().requires_grad_(True)
    run = li.Run(
        n=N, steps=2, step_size=0.1, noise=li.NoiseMultiplier(1.0), clip=0.5, rows_per_unit=3
    )
    loss = lambda output, ids: functional.cross_entropy(output["logits"][:-1], ids[1:])  # noqa: E731
    data = {"input_ids": IDS, "attention_mask": SEEN}, IDS
    found = li.train(run, data, model=model, loss=loss, unit=np.arange(N) // 3)
    tied = found.module.get_output_embeddings().weight
    assert (
        tied is found.module.get_input_embeddings().weight and "lm_head.weight" not in found.state
    )
    with pytest.raises(InputError, match="at most rows_per_unit = 3 rows"):
        li.train(run, data, model=model, loss=loss, unit=np.arange(N) // 4)


def fine_tune(model, records=ANSWERS, loss=own_loss):
    return li.train(RUN, records, model=model, loss=loss)


def test_dropout_fused_into_attention_is_refused_by_name_with_a_remedy_that_works():
    model = reader().train()
    with pytest.raises(InputError) as caught:
        fine_tune(model)
    assert "BertSelfAttention at 'base_model.model.bert.encoder.layer.0.attention.self'" in str(
        caught.value
    ) and 'model.set_attn_implementation("eager")' in str(caught.value)
    model.set_attn_implementation("eager")
    assert fine_tune(model).run.augmentation == li.RecordAugmentation("dropout")
    config = transformers.LlamaConfig(
        **SMALL, intermediate_size=32, num_key_value_heads=1, attention_dropout=0.1
    )
    model = transformers.LlamaForCausalLM(config).train()  # its dropout is no part of its own
    for way in ("sdpa", "eager"):
        model.set_attn_implementation(way)
        with pytest.raises(InputError, match=r"switch (it|dropout) off with \.eval\(\)") as caught:
            fine_tune(model, TEXTS)
        assert "eager" not in str(caught.value)
    fine_tune(model.eval(), TEXTS)


def test_adalora_is_refused_with_remedies_that_work():
    def adapt(config):
        torch.manual_seed(0)
        small = transformers.BertConfig(**SMALL, intermediate_size=32, num_labels=3)
        model = transformers.BertForSequenceClassification(small)
        return peft.get_peft_model(model, config).eval()

    config = peft.AdaLoraConfig(
        task_type="SEQ_CLS", init_r=4, target_r=2, tinit=1, tfinal=1, total_step=10
    )
    with pytest.raises(InputError, match="use LoraConfig, or give the labels to a loss of your"):
        fine_tune(adapt(config))
    inputs = {name: ANSWERS[name] for name in ("input_ids", "attention_mask")}
    fine_tune(
        adapt(config), (inputs, Y), lambda output, y: functional.cross_entropy(output.logits, y)
    )
    fine_tune(adapt(peft.LoraConfig(task_type="SEQ_CLS", r=2)))
