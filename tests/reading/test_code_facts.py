"""What pasted Python does with tensors is read from its syntax tree, whatever the names of a project are, and nothing is run."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose
from advisor.reading import read
from advisor.reading.code_facts import code_facts
from advisor.reading.code_of_files import MOST_HELPERS

KEEPS = {
    "a list of losses": "for x, y in loader:\n    loss = criterion(net(x), y)\n    loss.backward()\n    history.append(loss)\n",
    "outputs in a dictionary of lists": (
        "def train(loader):\n    for b in loader:\n        out = model(b)\n        out.loss.backward()\n        log['out'].append(out.logits)\n"
    ),
    "no backward in sight, no evaluation either": "for b in loader:\n    outputs = model(b)\n    all_outputs.append(outputs)\n",
}
LETS_GO = {
    "a number": "for x, y in loader:\n    loss = criterion(net(x), y)\n    loss.backward()\n    history.append(loss.item())\n",
    "detached": "for b in loader:\n    out = model(b)\n    out.loss.backward()\n    log.append(out.logits.detach().cpu())\n",
    "a list of this step": "for b in loader:\n    parts = []\n    for c in b:\n        loss = net(c)\n        parts.append(loss)\n    sum(parts).backward()\n",
    "names, not tensors": "for f in files:\n    path = root / f\n    outputs_dir.append(path)\n",
}


@pytest.mark.parametrize("name", KEEPS)
def test_a_graph_that_is_kept(name: str) -> None:
    assert [f.what for f in code_facts(KEEPS[name])] == ["keeps-graph"]


@pytest.mark.parametrize("name", LETS_GO)
def test_what_is_let_go(name: str) -> None:
    assert "keeps-graph" not in [f.what for f in code_facts(LETS_GO[name])]


def test_an_evaluation_that_keeps_its_batches_on_the_card() -> None:
    code = (
        "@torch.no_grad()\ndef evaluate(model, loader):\n    preds = []\n    for b in loader:\n        logits = model(b)\n        preds.append({})\n"
        "    return torch.cat(preds)\n"
    )
    assert [f.what for f in code_facts(code.format("logits"))] == ["keeps-on-card"]
    assert not code_facts(code.format("logits.cpu()"))


def test_an_evaluation_with_its_graph() -> None:
    code = "def validate(net, loader):\n    net.eval()\n    {}for b in loader:\n        {}loss = net(b)\n        total += loss.item()\n"
    assert [f.what for f in code_facts(code.format("", ""))] == ["evaluates-with-graph"]
    quiet = (
        "def validate(net, loader):\n    net.eval()\n    with torch.no_grad():\n        for b in loader:\n            loss = net(b)\n"
        "            total += loss.item()\n"
    )
    assert not code_facts(quiet)


def test_a_state_that_is_carried_with_its_graph() -> None:
    code = "for x, y in loader:\n    {}out, hidden = model(x, hidden)\n    loss = crit(out, y)\n    loss.backward()\n    opt.step()\n"
    assert [f.what for f in code_facts(code.format(""))] == ["carries-graph"]
    assert not code_facts(code.format("hidden = repackage_hidden(hidden)\n    "))


def test_a_hook_that_keeps_what_it_sees() -> None:
    code = "acts = {{}}\ndef hook(module, inp, out):\n    acts['x'] = out{}\nmodel.layer.register_forward_hook(hook)\n"
    assert [f.what for f in code_facts(code.format(""))] == ["hook-keeps-graph"]
    assert not code_facts(code.format(".detach()"))


@pytest.mark.parametrize(
    "wrap",
    ["model = FSDP(model)", "fully_shard(model)", "engine, *_ = deepspeed.initialize(model=model, config=c)", "model, opt = accelerator.prepare(model, opt)"],
)
def test_a_model_that_is_moved_before_it_is_divided(wrap: str) -> None:
    assert [f.what for f in code_facts(f"model = build()\nmodel = model.cuda()\n{wrap}\n")] == ["moves-before-sharding"]
    assert not code_facts(f"model = build()\n{wrap}\nmodel = model.cuda()\n")


def test_a_checkpoint_without_a_place_a_model_twice_a_device_never_chosen() -> None:
    assert [f.what for f in code_facts("ckpt = torch.load('a.pt')\n")] == ["loads-where-saved"]
    assert not code_facts("ckpt = torch.load('a.pt', map_location='cpu')\n")
    twice = "a = AutoModelForCausalLM.from_pretrained(name)\nb = AutoModelForCausalLM.from_pretrained({})\n"
    assert [f.what for f in code_facts(twice.format("name"))] == ["loads-twice"]
    assert not code_facts(twice.format("other"))
    blind = "dist.init_process_group('nccl')\nmodel = net.cuda()\nmodel = DDP(model)\n"
    assert [f.what for f in code_facts(blind)] == ["never-chooses-device"]
    assert not code_facts(blind + "torch.cuda.set_device(rank)\n")


def test_a_snippet_that_does_not_parse_as_a_whole_is_read_in_blocks_with_its_lines() -> None:
    found = code_facts("from x import y\n$ python train.py\nfor b in loader:\n    loss = model(b)\n    loss.backward()\n    seen.append(loss)\n<broken\n")
    assert [(f.what, f.line) for f in found] == [("keeps-graph", 6)]


@pytest.mark.parametrize(
    "text", ["(" * 5000 + ")" * 5000 + "\nx = torch.load(a)", "x = " + "-" * 20000 + "1\ntorch.load(a)", "for x in y:\n" * 500, "\0x = torch.load(a)\n"]
)
def test_hostile_code_ends_calmly(text: str) -> None:
    assert all(fact.line >= 1 for fact in code_facts(text))


def test_it_becomes_a_key_of_the_evidence_with_its_line_and_logs_do_not() -> None:
    keys = read([("train.py", KEEPS["a list of losses"])]).evidence.seen_keys
    assert ("train.py:4", "code.keeps-graph", "history.append(loss)") in keys
    log = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    history.append(loss)\nRuntimeError: x\n'
    assert not [k for _, k, _ in read([("log.txt", log)]).evidence.seen_keys if k.startswith("code.")]


@pytest.mark.parametrize(("code", "found"), [
    ("def norm(ps):\n    for p in ps:\n        total += p.grad.to(torch.float32).pow(2).sum()\n", ["widens-gradients"]),
    ("def norm(ps):\n    for p in ps:\n        g = p.grad.detach()\n        total += g.float().pow(2).sum()\n", ["widens-gradients"]),
    ("def norm(ps):\n    for p in ps:\n        total += p.grad.norm().float()\n", []),  # a number is widened
    ("def forward(self, x):\n    return self.net(x.float())\n", []),
    ("def step(self, z):\n    self.codes.append(z.detach())\n", ["keeps-detached"]),
    ("def step(self, z):\n    ...\n      ...\n    self.codes.append(z.detach())\n", ["keeps-detached"]),  # what is left out stands at any indentation
    ("def step(self, z):\n    self.codes.append(z.detach().cpu())\n", []),
    ("def step(self, loss):\n    self.losses.append(loss.detach())\n", []),
    ("def step(self, z):\n    codes = []\n    codes.append(z.detach())\n    self.use(codes)\n", []),
    ("if new:\n    vae = VAE.from_pretrained(p).to('cuda')\n    save(vae)\nnet.to('cuda')\n", ["left-on-card"]),
    ("if new:\n    vae = VAE.from_pretrained(p).to('cuda')\n    save(vae)\n    del vae\nnet.to('cuda')\n", []),
    ("if new:\n    vae = VAE.from_pretrained(p).to('cuda')\nlatents = vae(x)\n", []),  # it is used later too
    ("if __name__ == '__main__':\n    vae = VAE.from_pretrained(p).to('cuda')\n    for x in data:\n        fit_one(net, vae(x))\n", []),
    ("with session():\n    vae = VAE.from_pretrained(p).to('cuda')\n    for x in data:\n        net(vae(x)).backward()\n", []),  # training needs it
])  # fmt: skip
def test_what_stays_and_what_is_widened(code: str, found: list[str]) -> None:
    assert [f.what for f in code_facts(code)] == found


def test_only_so_many_helpers_and_names_are_followed() -> None:
    many = "if new:\n    import torch\n" + "".join(f"    vae{i} = VAE.from_pretrained(p).to('cuda')\n" for i in range(MOST_HELPERS + 5))
    assert len(code_facts(many)) == MOST_HELPERS
    far = "def norm(p):\n" + "".join(f"    g{i + 1} = g{i}.detach()\n" for i in reversed(range(1, 40))) + "    g1 = p.grad\n    total = g{0}.float()\n"
    assert [f.what for f in code_facts(far.format(3))] == ["widens-gradients"]
    assert code_facts(far.format(39)) == []


@pytest.mark.parametrize(
    "code",
    [
        "while True:\n    try:\n        fit(bs); break\n    except RuntimeError as e:\n        errors.append(e)\n        bs //= 2\n",
        "try:\n    train(64)\nexcept torch.cuda.OutOfMemoryError:\n    train(32)\n",
        "def run(batch):\n    try:\n        model(batch).loss.backward()\n        return run(batch)\n    except RuntimeError:\n        run(batch[::2])\n",
    ],
)
def test_a_failed_try_that_is_kept(code: str) -> None:
    assert {"keeps-exception", "retries-in-except"} & {f.what for f in code_facts(code)}


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    train(64)\nexcept RuntimeError as e:\n    failed = True\n    print(e)\nif failed:\n    train(32)\n",
        "try:\n    load(path)\nexcept FileNotFoundError as e:\n    errors.append(e)\n",
    ],
)
def test_a_try_outside_the_except_keeps_nothing(code: str) -> None:
    assert not {"keeps-exception", "retries-in-except"} & {f.what for f in code_facts(code)}


def test_checkpointing_in_evaluation_mode() -> None:
    code = "unet.enable_gradient_checkpointing()\nunet.eval()\nloss = step(unet)\nloss.backward()\n"
    assert "checkpoints-in-eval" in {f.what for f in code_facts(code)}
    assert "checkpoints-in-eval" not in {f.what for f in code_facts(code.replace("unet.eval()", "unet.eval()\nunet.train()"))}


def test_a_switch_that_evaluates_what_is_checkpointed_decides_with_the_config() -> None:
    switch = "if args.disable_unet_training:\n    unet.eval()\nelse:\n    unet.train()\n"
    code = "unet = load(path)\nif args.gradient_checkpointing:\n    unet.enable_gradient_checkpointing()\n" + switch
    assert {f.what for f in code_facts(code)} == {"evaluates-where"}
    assert {f.what for f in code_facts(code + "# from the library\n            broken = (\n")} == {"evaluates-where"}  # what does not parse is left out
    assert not code_facts(code.replace("unet.train()", "pass"))
    error = "RuntimeError: CUDA out of memory. Tried to allocate 68.00 MiB (GPU 0; 23.69 GiB total capacity; 22.78 GiB already allocated; 40.96 MiB free)\n"
    on = '{"batch_size": 6, "gradient_checkpointing": true, "disable_unet_training": true}'
    off = on.replace('training": true', 'training": false')
    found = [diagnose([("train.py", code), ("train.json", config), ("error.txt", error)]).findings[0].cause for config in (on, off)]
    assert found[0] == "checkpointing-broken" != found[1]
