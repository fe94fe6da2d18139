"""Scripts of Hugging Face's ``Trainer``, trained as a run: what its arguments mean here."""

# pyright: reportMissingImports=false
from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from lastiterate.accounting.certificate import Certificate
from lastiterate.errors import InputError
from lastiterate.release.training import check_options, train
from lastiterate.run.batching import RandomAllocation
from lastiterate.run.run import Run
from lastiterate.run.updates import PostProcessing
from lastiterate.torch.records import READ_AGAIN, is_same
from lastiterate.torch.released_module import FittedModule

LEAVE_OUT = "leave it out"
REFUSED: tuple[tuple[str, tuple[object, ...], str, str], ...] = (
    (
        "fp16",
        (False,),
        "must be off: its loss is scaled by what gradients were before",
        "; bf16=True needs no scale",
    ),
    (
        "label_smoothing_factor",
        (0,),
        "must be 0: Trainer takes it of a batch, and a loss is that of one record",
        "; loss=lambda output, labels: torch.nn.functional.cross_entropy(output.logits, labels, "
        "label_smoothing=0.1) smooths them",
    ),
    *(
        (
            name,
            plain,
            "must not order the records: the run draws its batches, and is charged for that",
            "; run=lastiterate.Run(..., batching=...) takes another way to draw them",
        )
        for name, plain in (("train_sampling_strategy", ("random",)), ("group_by_length", (False,)))
    ),
    *(
        (
            name,
            (False, None),
            "must be off: it hooks into a backward pass of a batch, and there is none",
            "; microbatch= bounds the memory",
        )
        for name in ("gradient_checkpointing", "activation_checkpointing", "auto_find_batch_size")
    ),
    (
        "neftune_noise_alpha",
        (None,),
        "must be None: its noise is drawn for a batch, without the keys of records",
        "",
    ),
    (
        "use_liger_kernel",
        (False,),
        "must be off: its kernels compute no gradients of single records",
        "",
    ),
    *(
        (
            name,
            (None, False, "", []),
            "must be off: every process holds the module",
            "; torchrun shares the records of a batch among processes",
        )
        for name in ("fsdp", "deepspeed", "parallelism_config")
    ),
    *(
        (
            name,
            plain,
            "must be off: a look at a model on the way is a release, and the run pays for the last "
            "one alone",
            "; call evaluate() after train()",
        )
        for name, plain in (
            ("eval_strategy", ("no",)),
            ("eval_on_start", (False,)),
            ("load_best_model_at_end", (False,)),
        )
    ),
)
"""Arguments of ``TrainingArguments`` that are not certified: name, values that are, rule, remedy."""
ASKED_LATER = ("on_init_end", "on_evaluate", "on_predict", "on_prediction_step", "on_log")
"""What a callback may hear: nothing of the training."""
IN_THE_PLACE_OF = {
    "compute_loss_func": "loss=, of the output and the labels of one record",
    "optimizers": "optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)",
    "optimizer_cls_and_kwargs": "optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)",
}
"""Arguments of ``Trainer`` that are about batches or parameters of its own loop, and ours."""
EVALUATING = ("model_init", "compute_metrics", "callbacks", "preprocess_logits_for_metrics")
"""Arguments of ``Trainer`` that go to it as they are."""
DELEGATED = (
    *("args", "model", "state", "processing_class", "data_collator", "eval_dataset", "accelerator"),
    *("log", "log_metrics", "save_metrics", "save_state", "push_to_hub", "create_model_card"),
    *("is_world_process_zero", "is_local_process_zero", "metrics_format", "label_names"),
)
"""Attributes of the ``Trainer`` that evaluates; none of them trains."""
LABELS = ("label", "label_ids")
"""What a collator calls labels."""


class DPTrainer:
    """Train a Hugging Face model privately, with the arguments of ``transformers.Trainer``.

    Parameters
    ----------
    model : torch.nn.Module
        Model, trained in the mode that it is in: ``from_pretrained`` gives one without dropout.
        After ``train`` it has the released parameters.
    args : transformers.TrainingArguments, optional
        Learning rate, schedule, optimiser of ``torch.optim``, weight decay, epochs or ``max_steps``,
        ``output_dir``. The batch has ``per_device_train_batch_size`` times processes times
        ``gradient_accumulation_steps`` records on average; ``max_grad_norm`` is the clipping norm of
        one *record's* gradient. ``bf16`` casts the forward pass, and gradients are clipped and added
        in single precision. No key comes from ``seed``.
    data_collator : callable, optional
        Collator; it is called with one record at a time.
    train_dataset : Dataset
        Private records with a length, as ``Trainer`` takes them.
    eval_dataset : Dataset or dict, optional
        Records for ``evaluate``. Numbers about them are not covered by the certificate.
    processing_class : tokenizer or processor, optional
        What pads records, and is saved with the model.
    run : Run, optional
        Run to execute, with ``step_size=1``, in place of the batch size, the number of steps and
        ``max_grad_norm``. With ``optimizer=None`` its own steps are made.
    loss : callable, optional
        ``loss(output, *labels)`` of one record; by default the model's own.
    progress : callable or bool, optional
        As for `lastiterate.train`; by default a bar, unless ``disable_tqdm`` is set.
    **options : object
        Options of `lastiterate.train`, such as ``epsilon``, ``delta``, ``ledger``, ``dataset``,
        ``unit``, ``checkpoint``, ``microbatch``; and ``model_init``, ``compute_metrics``,
        ``callbacks`` and ``preprocess_logits_for_metrics`` of ``Trainer``. ``out`` is
        ``output_dir/certified`` by default.

    Attributes
    ----------
    run : Run
        Run as `lastiterate.train` gets it.
    fitted : FittedModule
        Released model, after ``train``.
    certificate : Certificate
        Certificate of the released model.

    Raises
    ------
    InputError
        If an argument means what cannot be certified.
    ModuleNotFoundError
        If ``transformers`` or ``accelerate`` is not installed.

    See Also
    --------
    lastiterate.train : Train any module on any loss.

    Notes
    -----
    **Guarantee:** that of `lastiterate.train`, which executes the run; the loop of ``Trainer`` is
    not used. A `Trainer` without training data evaluates and predicts.

    Examples
    --------
    >>> import torch
    >>> from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
    >>> from lastiterate.torch import DPTrainer
    >>> small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> config = BertConfig(vocab_size=20, intermediate_size=8, **small)
    >>> texts = [{"input_ids": [1 + i % 3, 2, 3], "labels": i % 2} for i in range(40)]
    >>> args = TrainingArguments("private", max_steps=8, use_cpu=True, disable_tqdm=True)
    >>> trainer = DPTrainer(BertForSequenceClassification(config).eval(), args, train_dataset=texts,
    ...     epsilon=3.0, delta=1e-3)
    >>> trainer.run.batching, trainer.run.clip
    (RandomAllocation(size=8), 1.0)
    """

    run: Run
    fitted: FittedModule

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        data_collator: Callable[[list[Any]], dict[str, Any]] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        *,
        run: Run | None = None,
        loss: Callable[..., Any] | None = None,
        progress: Any = None,
        **options: Any,
    ) -> None:
        from transformers import Trainer, TrainingArguments

        for name in [name for name in IN_THE_PLACE_OF if name in options]:
            if options.pop(name) not in (None, (None, None)):
                raise InputError(
                    name,
                    "is called by the loop of Trainer, which is not used",
                    None,
                    f"give {IN_THE_PLACE_OF[name]}",
                )
        own = {name: options.pop(name) for name in EVALUATING if name in options}
        check_options("DPTrainer", options)
        args = TrainingArguments() if args is None else args
        check_arguments(args)
        for callback in own.get("callbacks") or ():
            check_callback(callback)
        check_collator(data_collator)
        check_dataset(train_dataset)
        self._trainer: Any = Trainer(
            model,
            args,
            data_collator,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            **own,
        )
        self.run = describe_run(args, train_dataset) if run is None else run
        self._loss = take_own_loss if loss is None else loss
        self._progress = not args.disable_tqdm if progress is None else progress
        self._options: Any = options
        if "optimizer" not in options:
            if type(self.run.optimizer) not in (type(None), PostProcessing):
                raise InputError(
                    "run",
                    "must leave the update to the optimiser of the arguments",
                    type(self.run.optimizer).__name__,
                    "give optimizer=None too, and the run's own is executed",
                )
            trained = [each for each in self._trainer.model.parameters() if each.requires_grad]
            self._make_optimizer(trained)
        names = [*self._trainer.label_names]
        self._records = CollatedRecords(
            train_dataset,
            self._trainer.data_collator,
            list_columns(self._trainer.model, names) if args.remove_unused_columns else None,
            [] if loss is None else names,
        )

    def __getattr__(self, name: str) -> Any:
        if name in DELEGATED:
            return getattr(self._trainer, name)
        if name in ("fitted", "certificate"):
            raise AttributeError(f"{name}: must be made by train() first")
        raise AttributeError(f"DPTrainer has no attribute {name!r}")

    @property
    def certificate(self) -> Certificate:
        """The certificate of the released model."""
        return self.fitted.certificate

    def train(self, resume_from_checkpoint: object = None) -> Any:
        """Execute the run and put the released parameters into the model.

        Returns ``TrainOutput``, with epsilon and delta among its metrics and no training loss, which
        is private. ``fitted`` is the released model.

        Errors: those of `lastiterate.train`, and ``resume_from_checkpoint``.
        """
        from transformers.trainer_utils import TrainOutput

        if resume_from_checkpoint:
            raise InputError(
                "resume_from_checkpoint",
                "must be left out: plain checkpoints are releases, and none are written",
                resume_from_checkpoint,
                "call train() with checkpoint=, an encrypted file from which the same call resumes",
            )
        out = Path(self._trainer.args.output_dir) / "certified"
        options: Any = {"optimizer": self._make_optimizer, "out": out, **self._options}
        model, half = self._trainer.model, self._trainer.args.bf16
        with cast_forward(model) if half else nullcontext():
            fitted = train(
                self.run,
                self._records,
                model=model,
                loss=self._loss,
                progress=self._progress,
                **options,
            )
        assert isinstance(fitted, FittedModule)
        self.fitted = fitted
        released = fitted.module
        if released is None:
            released = fitted.module_at(fitted.run.steps, like=model)
        model.load_state_dict(released.state_dict())
        epsilon = fitted.certificate.epsilon(fitted.delta)
        metrics = {"train_epsilon": epsilon, "train_delta": fitted.delta}
        return TrainOutput(self.run.steps, math.nan, metrics)

    def evaluate(self, *args: Any, **named: Any) -> dict[str, float]:
        """Return the metrics of ``Trainer.evaluate`` for the model as it is."""
        return self._trainer.evaluate(*args, **named)

    def predict(self, *args: Any, **named: Any) -> Any:
        """Return the predictions of ``Trainer.predict`` by the model as it is."""
        return self._trainer.predict(*args, **named)

    def save_model(self, output_dir: str | None = None) -> None:
        """Write the model for ``from_pretrained``; ``fitted.save(folder)`` writes it with its
        certificate."""
        self._trainer.save_model(output_dir)

    def _make_optimizer(self, parameters: list[torch.Tensor]) -> Any:
        """The optimiser and schedule of the arguments, on ``parameters`` in the model's order."""
        from transformers import get_scheduler

        trainer, args, steps = self._trainer, self._trainer.args, self.run.steps
        kind, settings = trainer.get_optimizer_cls_and_kwargs(args, trainer.model)
        decayed = set(trainer.get_decay_parameter_names(trainer.model))
        names = [name for name, each in trainer.model.named_parameters() if each.requires_grad]
        if not getattr(kind, "__module__", "").startswith("torch.optim."):
            raise InputError(
                "optim",
                "must be an optimiser of torch.optim, which sees gradients alone",
                str(getattr(args.optim, "value", args.optim)),
                'write optim="adamw_torch", or give optimizer= as lastiterate.train takes it',
            )
        groups = [
            {
                "params": [
                    each
                    for name, each in zip(names, parameters, strict=True)
                    if (name in decayed) == decays
                ],
                "weight_decay": args.weight_decay if decays else 0.0,
            }
            for decays in (True, False)
        ]
        settings = {name: value for name, value in settings.items() if name != "fused"}
        made = kind([group for group in groups if group["params"]], **settings)
        schedule = get_scheduler(
            args.lr_scheduler_type,
            made,
            args.get_warmup_steps(steps),
            steps,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )
        if not isinstance(schedule, torch.optim.lr_scheduler.LambdaLR):
            raise InputError(
                "lr_scheduler_type",
                "must be a function of the step, and this one follows a private loss",
                str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)),
                'write lr_scheduler_type="linear" or "cosine"',
            )
        return schedule


def check_arguments(args: Any) -> None:
    """Refuse training arguments that mean what is not certified."""
    for name, plain, rule, remedy in REFUSED:
        value = getattr(args, name, plain[0])
        if value not in plain:
            raise InputError(name, rule, str(getattr(value, "value", value)), LEAVE_OUT + remedy)
    if args.save_strategy == "best":
        raise InputError(
            "save_strategy",
            "must not look at models on the way, which are no releases",
            "best",
            "leave it out: the last model is saved in output_dir/certified",
        )


@contextmanager
def cast_forward(model: torch.nn.Module) -> Iterator[None]:
    """Let the forward pass of ``model`` compute in bfloat16 where ``torch.autocast`` does, and give
    single precision, as ``accelerate`` does it.

    The class is changed for a while instead of the method, which copies of the model would share.
    """
    from accelerate.utils import convert_to_fp32

    kind: Any = type(model)

    @functools.wraps(kind.forward)
    def forward(self: Any, *args: Any, **named: Any) -> Any:
        device = next(self.parameters()).device.type
        with torch.autocast(device, dtype=torch.bfloat16):
            output = kind.forward(self, *args, **named)
        return convert_to_fp32(output)

    model.__class__ = type(
        kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__}
    )
    try:
        yield
    finally:
        model.__class__ = kind


def check_callback(callback: Any) -> None:
    """Refuse a callback that hears of the training."""
    from transformers import TrainerCallback

    kind = callback if isinstance(callback, type) else type(callback)
    for name in dir(TrainerCallback):
        if not name.startswith("on_") or name in ASKED_LATER:
            continue
        if getattr(kind, name) is not getattr(TrainerCallback, name):
            raise InputError(
                "callbacks",
                f"must not wait for {name}: models on the way are shown to nobody",
                kind.__name__,
                "leave it out; progress=f is called with the steps that are done",
            )


def check_collator(collator: object) -> None:
    """Refuse a collator that masks words at random by itself."""
    if getattr(collator, "mlm", False) or "Permutation" in type(collator).__name__:
        raise InputError(
            "data_collator",
            "must draw nothing: a text would keep one mask in the whole training, or have another "
            "in every process",
            type(collator).__name__,
            "mask the texts of the data set once, or at every step by augment=f(key, record)",
        )


def describe_run(args: Any, dataset: Any) -> Run:
    """The run that training arguments describe, for the records of ``dataset``."""
    if not args.max_grad_norm or args.max_grad_norm < 0:
        raise InputError(
            "max_grad_norm",
            "must be a number > 0: it is the clipping norm of one record's gradient",
            args.max_grad_norm,
            "write max_grad_norm=1.0",
        )
    n = max(len(dataset), 1)
    size = args.per_device_train_batch_size * args.world_size * args.gradient_accumulation_steps
    batching = RandomAllocation(min(size, n))
    steps = math.ceil(args.num_train_epochs * batching.steps_per_epoch(n))
    return Run(
        n=n,
        steps=args.max_steps if args.max_steps > 0 else max(steps, 1),
        step_size=1,
        clip=args.max_grad_norm,
        batching=batching,
    )


def check_dataset(dataset: Any) -> None:
    """Refuse a stream, and no data set at all."""
    if isinstance(dataset, torch.utils.data.IterableDataset) or not all(
        hasattr(dataset, name) for name in ("__len__", "__getitem__")
    ):
        raise InputError(
            "train_dataset",
            "must be a data set with a length and numbered items",
            type(dataset).__name__,
            "give list(train_dataset) of a stream: the run decides which record is in which batch",
        )


def list_columns(model: Any, labels: list[str]) -> set[str]:
    """The names in an item that are inputs of the model, or labels."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return {*inspect.signature(inner.forward).parameters, *LABELS, *labels}


def take_own_loss(output: Any) -> Any:
    """The loss that a model computes of one record with labels."""
    if not isinstance(output, Mapping):
        return output[0]
    if output.get("loss") is None:
        raise InputError(
            "train_dataset",
            "must hold labels, from which the model computes its loss",
            None,
            "name them label or labels, or as the model's forward does; or give loss=",
        )
    return output["loss"]


class CollatedRecords(torch.utils.data.Dataset[Any]):
    """Items of a data set as a collator makes them, each by itself: none can be mixed with another.

    ``columns``: names that are kept, all where it is None. ``labels``: names of what the loss
    takes instead of the model.
    """

    def __init__(
        self,
        dataset: Any,
        collator: Callable[[list[Any]], Mapping[str, Any]],
        columns: set[str] | None,
        labels: list[str],
    ) -> None:
        self.dataset, self.collator, self.columns, self.labels = dataset, collator, columns, labels
        self._shapes: dict[str, torch.Size] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> Any:
        item = self.dataset[number]
        if self.columns is not None and isinstance(item, Mapping):
            item = {name: value for name, value in item.items() if name in self.columns}
        record = self._collate(item)
        if number < READ_AGAIN and not all(
            is_same(*pair)
            for pair in zip(tree_leaves(record), tree_leaves(self._collate(item)), strict=False)
        ):
            raise InputError(
                "data_collator",
                "must draw nothing, and makes another record of the same item",
                type(self.collator).__name__,
                "draw by augment=f(key, record), under keys that the run accounts for",
            )
        shapes = {name: value.shape for name, value in record.items()}
        self._shapes = self._shapes or shapes
        if shapes != self._shapes:
            raise InputError(
                "data_collator",
                "must give all records the same parts and shapes, each by itself",
                None,
                'pad to a public length with DataCollatorWithPadding(tokenizer, padding="max_length", '
                "max_length=128), and cut longer texts in the tokenizer",
            )
        labels = tuple(record.pop(name) for name in self.labels if name in record)
        return (record, *labels) if self.labels else record

    def _collate(self, item: Any) -> dict[str, torch.Tensor]:
        """The tensors of one item, without the axis of the batch."""
        made = self.collator([item])
        record = {
            name: each if isinstance(each, torch.Tensor) else torch.as_tensor(np.asarray(each))
            for name, each in made.items()
        }
        if not all(each.dim() and len(each) == 1 for each in record.values()):
            raise InputError(
                "data_collator",
                "must make one record of one item, along the first axis of every tensor",
                type(self.collator).__name__,
                "leave it out, or pad with DataCollatorWithPadding",
            )
        return {name: each[0] for name, each in record.items()}
