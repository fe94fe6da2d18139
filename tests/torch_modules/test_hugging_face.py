"""``DPTrainer``: what the arguments of Hugging Face's ``Trainer`` mean here, what is refused, and
that each refusal's remedy works. Models are made from small configurations: nothing is downloaded.
"""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as functional

import lastiterate as li
from lastiterate.errors import InputError
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.torch import DPTrainer
from torch_modules.test_processes import join_threads

accelerate = transformers = None
pytestmark = pytest.mark.filterwarnings("ignore::lastiterate.errors.RepeatedFitWarning")


@pytest.fixture(scope="module", autouse=True)
def library():
    for name in ("accelerate", "transformers"):
        globals()[name] = pytest.importorskip(name, reason="it is installed beside torch")
    transformers.logging.set_verbosity_error()


N, LENGTH, WORDS = 12, 6, 20
RNG = np.random.default_rng(0)
IDS, Y = RNG.integers(4, WORDS, (N, LENGTH)), np.arange(N) % 2
SEEN = (np.arange(LENGTH) < 3 + np.arange(N)[:, None] % 4).astype(np.int64)
TEXTS = [
    {
        "input_ids": IDS[i].tolist(),
        "attention_mask": SEEN[i].tolist(),
        "label": int(Y[i]),
        "author": f"author {i}",
        "number": i,
    }
    for i in range(N)
]
INPUTS = {"input_ids": IDS, "attention_mask": SEEN}
SIZES = dict(
    vocab_size=WORDS,
    max_position_embeddings=16,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=8,
)
BUDGET = {"epsilon": 8.0, "delta": 1e-3}
RUN = li.Run(
    n=N, steps=2, step_size=1, clip=0.5, noise=li.NoiseMultiplier(2), batching=li.Cyclic(4)
)


def reader(kind="BertForSequenceClassification"):
    torch.manual_seed(0)
    return getattr(transformers, kind)(transformers.BertConfig(**SIZES)).eval()


def arguments(tmp_path, **more):
    plain = {"max_steps": 2, "per_device_train_batch_size": 4, "report_to": []}
    quiet = {"use_cpu": True, "disable_tqdm": True}
    return transformers.TrainingArguments(str(tmp_path), **plain | quiet | more)


def trainer(tmp_path, *, more=None, **given):
    args = arguments(tmp_path, **(more or {}))
    options = {"model": reader(), "train_dataset": TEXTS, "run": RUN, "delta": 1e-3} | given
    return DPTrainer(args=args, **options)


def state(model):
    return {name: each.detach().clone() for name, each in model.state_dict().items()}


def same(one, other, tolerance=0.0):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=tolerance)


SCHEDULE = {"learning_rate": 0.02, "warmup_steps": 2, "weight_decay": 0.3}


def test_with_hardly_a_clip_and_noise_it_makes_the_steps_of_trainer(tmp_path):
    """Full batches, which have one order: learning rate, warm-up, decay and its groups are those
    of ``Trainer``."""
    more = {"per_device_train_batch_size": N, "max_steps": 3, "max_grad_norm": 1e6, **SCHEDULE}
    more |= {"adam_epsilon": 0.01, "adam_beta1": 0.7}
    args, theirs = arguments(tmp_path / "a", **more), reader()
    first = state(theirs)
    theirs.train = lambda mode=True: theirs  # Trainer switches dropout on
    transformers.Trainer(theirs, args, train_dataset=TEXTS).train()
    mine = reader()
    run = li.Run(n=N, steps=3, step_size=1, clip=20.0, noise=li.GradientNoise(1e-7))
    DPTrainer(mine, args, train_dataset=TEXTS, run=run, delta=1e-3).train()
    same(state(mine), state(theirs), 1e-5)
    assert (
        max(float((first[name] - each).abs().max()) for name, each in state(mine).items()) > 0.005
    )


def test_it_releases_what_train_does(tmp_path):
    """The run, the records and the optimiser that the arguments mean, written by hand."""
    more = {"gradient_accumulation_steps": 2, "num_train_epochs": 2, "max_steps": -1, "seed": 7}
    more |= {"max_grad_norm": 0.5} | SCHEDULE
    found = trainer(tmp_path, more=more, run=None, seed=3, **BUDGET)
    output = found.train()
    run = li.Run(n=N, epochs=2, step_size=1, clip=0.5, batching=li.RandomAllocation(8))
    assert found.run == run and run.steps == 4

    def optimizer(parameters):
        names = [name for name, _ in reader().named_parameters()]
        plain = [name.endswith("bias") or "LayerNorm" in name for name in names]
        groups = [
            {"params": [p for p, no in zip(parameters, plain, strict=True) if no == off]}
            | {"weight_decay": 0.0 if off else 0.3}
            for off in (False, True)
        ]

        def rate(step):
            return step / 2 if step < 2 else (4 - step) / 2

        return torch.optim.lr_scheduler.LambdaLR(torch.optim.AdamW(groups, lr=0.02), rate)

    alone = li.train(
        run,
        INPUTS | {"labels": Y},
        model=reader(),
        loss=lambda output: output.loss,
        optimizer=optimizer,
        seed=3,
        **BUDGET,
    )
    same(found.fitted.state, alone.state)
    assert found.certificate.to_dict(1e-3) == alone.certificate.to_dict(1e-3)
    assert output.metrics["train_epsilon"] == found.certificate.epsilon(1e-3) <= 8.0
    assert output.global_step == 4 and np.isnan(output.training_loss), "losses are private"


def test_afterwards_it_is_a_trainer_of_the_released_model(tmp_path):
    def accuracy(given):
        return {"accuracy": float((given.predictions.argmax(1) == given.label_ids).mean())}

    model = reader()
    found = trainer(tmp_path / "o", model=model, eval_dataset=TEXTS, compute_metrics=accuracy)
    with pytest.raises(AttributeError, match=r"train\(\) first"):
        _ = found.certificate
    found.train()
    assert found.model is model
    same({name: state(model)[name] for name in found.fitted.state}, found.fitted.state)
    logits = found.fitted.predict(INPUTS)["logits"]
    np.testing.assert_allclose(found.predict(TEXTS).predictions, logits, atol=1e-5)
    assert found.evaluate()["eval_accuracy"] == (logits.argmax(1) == Y).mean()
    found.save_model(tmp_path / "saved")
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "saved")
    same(state(again), state(model))
    assert li.verify(tmp_path / "o" / "certified").holds
    same(li.load(tmp_path / "o" / "certified", like=reader()).state, found.fitted.state)
    with pytest.raises(InputError, match="out must not exist yet"):
        found.train()
    with pytest.raises(AttributeError, match="no attribute 'hyperparameter_search'"):
        found.hyperparameter_search()


def test_the_seed_of_the_arguments_is_no_key(tmp_path):
    one, other = (trainer(tmp_path / name, more={"seed": 7, "data_seed": 7}) for name in "ab")
    one.train(), other.train()
    assert not any(
        torch.equal(one.fitted.state[name], other.fitted.state[name]) for name in one.fitted.state
    )


def test_two_processes_train_it_together(monkeypatch, tmp_path):
    alone = trainer(tmp_path / "alone", seed=3)
    alone.train()
    ledger = Ledger(tmp_path / "ledger")
    ledger.add("d", unit="record", adjacency="zero-out", filter=GaussianFilter(900.0))
    every = [trainer(tmp_path / "both", seed=3, ledger=ledger) for _ in range(2)]
    for output in join_threads(monkeypatch)(2, lambda mine: every[mine.rank].train()):
        assert output.metrics["train_epsilon"] == alone.certificate.epsilon(1e-3)
    same(every[0].fitted.state, every[1].fitted.state)
    same(every[0].fitted.state, alone.fitted.state, 2e-6)
    assert [one.state for one in ledger.total("d").releases] == ["released"]


@pytest.mark.parametrize("looked", [False, True], ids=["at once", "after a look"])
@pytest.mark.parametrize("loss", [None, "of logits"])
def test_bf16_is_a_forward_pass_under_autocast(tmp_path, loss, looked):
    """As in a module that casts by itself, to the last bit; gradients are clipped in single
    precision either way."""

    class Casting(transformers.BertForSequenceClassification):
        @functools.wraps(transformers.BertForSequenceClassification.forward)
        def forward(self, *args, **named):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = super().forward(*args, **named)
            return accelerate.utils.convert_to_fp32(output)

    def of_logits(output, labels):
        assert output.logits.dtype == torch.float32
        return functional.cross_entropy(output.logits, labels)

    torch.manual_seed(0)
    casting = Casting(transformers.BertConfig(**SIZES)).eval()
    given = {"seed": 3, "loss": loss and of_logits}
    half = trainer(tmp_path / "half", more={"bf16": True}, eval_dataset=TEXTS, **given)
    if looked:
        half.evaluate()
    hand = trainer(tmp_path / "hand", model=casting, **given)
    full = trainer(tmp_path / "full", **given)
    for one in (half, hand, full):
        one.train()
    assert type(half.model) is transformers.BertForSequenceClassification
    same(half.fitted.state, hand.fitted.state)
    same(half.fitted.state, full.fitted.state, 2e-2)
    assert any(
        not torch.equal(value, full.fitted.state[name]) for name, value in half.fitted.state.items()
    )
    assert half.certificate.epsilon(1e-3) == full.certificate.epsilon(1e-3)
    assert li.verify(tmp_path / "half" / "certified").holds
    assert half.evaluate()["eval_loss"] > 0


def test_a_training_that_ends_early_leaves_the_class_of_the_model(tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    model = reader()
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, model=model, more={"bf16": True}, progress=stop).train()
    assert type(model) is transformers.BertForSequenceClassification


def smooth(output, labels):
    return functional.cross_entropy(output.logits, labels, label_smoothing=0.1)


REFUSED = {
    "fp16": ({"fp16": True}, {}),
    "label_smoothing_factor": ({"label_smoothing_factor": 0.1}, {"loss": smooth}),
    "train_sampling_strategy": (
        {"train_sampling_strategy": "sequential"},
        {"run": RUN},
    ),
    "gradient_checkpointing": ({"gradient_checkpointing": True}, {"microbatch": 2}),
    "auto_find_batch_size": ({"auto_find_batch_size": True}, {"microbatch": 2}),
    "neftune_noise_alpha": ({"neftune_noise_alpha": 5.0}, {}),
    "use_liger_kernel": ({"use_liger_kernel": True}, {}),
    "fsdp": ({"fsdp": "full_shard"}, {}),
    "eval_strategy": ({"eval_strategy": "epoch"}, {}),
    "eval_on_start": ({"eval_on_start": True}, {}),
    "load_best_model_at_end": ({"load_best_model_at_end": True}, {}),
    "save_strategy": ({"save_strategy": "best", "metric_for_best_model": "loss"}, {}),
    "max_grad_norm": ({"max_grad_norm": 0.0}, {}),
    "optim": ({"optim": "adafactor"}, {}),
    "lr_scheduler_type": ({"lr_scheduler_type": "reduce_lr_on_plateau"}, {}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_are_not_certified_are_refused_with_remedies_that_work(name, tmp_path):
    asked, instead = REFUSED[name]
    given = arguments(tmp_path)
    for each, value in asked.items():
        setattr(given, each, value)  # some need a device or a library of their own
    model = reader()
    first = state(model)
    with pytest.raises(InputError) as caught:
        DPTrainer(model, given, train_dataset=TEXTS, **BUDGET).train()
    assert str(caught.value).startswith(f"{name} must")
    same(state(model), first)
    assert not (tmp_path / "certified").exists()
    remedy = {"optim": "adamw_torch", "lr_scheduler_type": "cosine", "max_grad_norm": 1.0}
    found = trainer(tmp_path, more={name: remedy[name]} if name in remedy else {}, **instead)
    if instead:
        found.train()


class Watcher:
    """A callback's own part: it looks at every step."""

    def on_step_end(self, args, state, control, **more):
        raise AssertionError


def test_callbacks_hear_nothing_of_the_training(tmp_path):
    heard = []

    class Asked(transformers.TrainerCallback):
        def on_evaluate(self, args, state, control, **more):
            heard.append("evaluate")

    watcher = type("Watcher", (Watcher, transformers.TrainerCallback), {})
    for each in (watcher, watcher(), transformers.EarlyStoppingCallback()):
        with pytest.raises(InputError, match=r"callbacks must not wait for on_.*progress=f"):
            trainer(tmp_path, callbacks=[each])
    steps = []
    found = trainer(tmp_path, callbacks=[Asked], progress=lambda done, *_: steps.append(done))
    found.train()
    assert steps[-1] == 2 and not heard
    found.evaluate(TEXTS)
    assert heard == ["evaluate"]


@pytest.mark.parametrize("name", ["compute_loss_func", "optimizers", "optimizer_cls_and_kwargs"])
def test_parts_of_the_loop_are_refused_for_ours(name, tmp_path):
    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1)

    given = {
        "compute_loss_func": smooth,
        "optimizers": (sgd(reader().parameters()), None),
        "optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.1}),
    }
    with pytest.raises(InputError, match=f"{name} is called by the loop of Trainer"):
        trainer(tmp_path, **{name: given[name]})
    found = trainer(
        tmp_path, **({"loss": smooth} if name == "compute_loss_func" else {"optimizer": sgd})
    )
    found.train()
    assert "SGD" in str(found.fitted.run.optimizer) or name == "compute_loss_func"
    trainer(tmp_path, **{name: (None, None) if name == "optimizers" else None})


def tokenizer():
    words = {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, **{f"w{i}": i for i in range(3, WORDS)}}
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]"
    )


def test_texts_are_padded_one_by_one_to_a_public_length(tmp_path):
    words = tokenizer()
    texts = [
        words(" ".join(f"w{k}" for k in IDS[i][: SEEN[i].sum()])) | {"label": int(Y[i])}
        for i in range(N)
    ]
    given = {"train_dataset": texts, "processing_class": words, "seed": 3}
    with pytest.raises(InputError, match=r'the same parts and shapes.*padding="max_length"'):
        trainer(tmp_path / "a", **given).train()
    collator = transformers.DataCollatorWithPadding(words, padding="max_length", max_length=LENGTH)
    found = trainer(tmp_path / "b", **given, data_collator=collator)
    found.train()
    alone = trainer(
        tmp_path / "c",
        seed=3,
        train_dataset=[
            {**text, "input_ids": np.where(SEEN[i], IDS[i], 0).tolist()}
            for i, text in enumerate(TEXTS)
        ],
    )
    alone.train()
    same(found.fitted.state, alone.fitted.state)


def test_collators_see_one_record_and_draw_nothing(tmp_path):
    def collate(items):
        assert len(items) == 1
        return transformers.default_data_collator(items)

    trainer(tmp_path / "a", data_collator=collate).train()

    def double(items):
        return transformers.default_data_collator(items + items)

    with pytest.raises(InputError, match="must make one record of one item"):
        trainer(tmp_path / "b", data_collator=double).train()

    def draw(items):
        made = transformers.default_data_collator(items)
        return made | {"input_ids": torch.randint_like(made["input_ids"], WORDS)}

    with pytest.raises(InputError, match="data_collator must draw nothing"):
        trainer(tmp_path / "b", data_collator=draw).train()


def test_masks_are_drawn_under_keys_of_records(tmp_path):
    masked = transformers.DataCollatorForLanguageModeling(tokenizer())
    texts = [{"input_ids": row.tolist(), "labels": row.tolist()} for row in IDS]
    model = reader("BertForMaskedLM")
    with pytest.raises(InputError, match=r"data_collator must draw nothing.*augment=f"):
        trainer(tmp_path, model=model, train_dataset=texts, data_collator=masked)

    def mask(key, record):
        hidden = key.uniform(LENGTH) < 0.3
        return {
            "input_ids": torch.where(hidden, 2, record["input_ids"]),
            "labels": torch.where(hidden, record["labels"], -100),
        }

    found = trainer(tmp_path, model=model, train_dataset=texts, augment=mask)
    found.train()
    assert found.fitted.run.augmentation is not None


def test_streams_are_refused_and_lists_of_them_taken(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(TEXTS)

    for each in (Stream(), None):
        with pytest.raises(InputError, match="train_dataset must be a data set with a length"):
            trainer(tmp_path, train_dataset=each)
    assert trainer(tmp_path, train_dataset=list(Stream()), run=None).run.n == N
    with pytest.raises(InputError, match="must have the run's n = 13 records"):
        trainer(tmp_path, run=replace(RUN, n=13)).train()


def test_texts_without_labels_and_two_optimisers_are_refused_with_remedies_that_work(tmp_path):
    bare = [{name: text[name] for name in ("input_ids", "attention_mask")} for text in TEXTS]
    with pytest.raises(InputError, match=r"train_dataset must hold labels.*name them label"):
        trainer(tmp_path / "a", train_dataset=bare).train()
    named = [{**text, "labels": label} for text, label in zip(bare, Y.tolist(), strict=True)]
    trainer(tmp_path / "b", train_dataset=named).train()
    own = replace(RUN, optimizer=li.Adam(), step_size=0.1)
    with pytest.raises(InputError, match=r"run must leave the update.*optimizer=None"):
        trainer(tmp_path / "c", run=own)
    found = trainer(tmp_path / "c", run=own, optimizer=None)
    found.train()
    assert found.fitted.run.optimizer == li.Adam()


def test_an_encrypted_checkpoint_takes_the_place_of_plain_ones(tmp_path):
    key = tmp_path / "key"
    key.write_text("ab" * 32), key.chmod(0o600)
    kept = {"checkpoint": tmp_path / "state", "checkpoint_key": key, "checkpoint_every": 0}

    def fail(done, *_):
        if done == 1:
            raise ZeroDivisionError

    alone = trainer(tmp_path / "a", seed=3)
    alone.train()
    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path / "b", seed=3, progress=fail, **kept).train()
    assert kept["checkpoint"].exists()
    again = trainer(tmp_path / "b", seed=3, **kept)
    with pytest.raises(InputError, match=r"resume_from_checkpoint must be left out.*checkpoint="):
        again.train(resume_from_checkpoint=True)
    again.train()
    same(again.fitted.state, alone.fitted.state)


def test_every_iterate_may_be_released_and_adapters_are_trained_alone(tmp_path):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model = peft.get_peft_model(reader(), peft.LoraConfig(task_type="SEQ_CLS", r=2)).eval()
    before = state(model)
    found = trainer(tmp_path, model=model, run=replace(RUN, release="all"))
    found.train()
    changed = {name for name, each in state(model).items() if not torch.equal(each, before[name])}
    assert changed and changed <= set(found.fitted.state)
    last = {name: each[-1] for name, each in found.fitted.state.items()}
    same({name: state(model)[name] for name in last}, last)
