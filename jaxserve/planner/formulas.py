"""How each number of a study came about: the formula, and the formula with its numbers."""

from __future__ import annotations

from jaxserve.planner import memory, roofline
from jaxserve.planner.memory import KV_BYTES, WEIGHT_BITS
from jaxserve.planner.study import Study
from jaxserve.planner.units import dollars, length, short, size, time


def formulas(study: Study) -> list[tuple[str, str, str]]:
    """What, formula, and formula with numbers; in the order of the report."""
    return [*_memory(study), *_steps(study), *_money(study)]


def _memory(study: Study) -> list[tuple[str, str, str]]:
    layout, room = study.layout, study.ledger
    shape, kv = layout.shape, study.ledger.kv
    bits = WEIGHT_BITS[layout.weights][1]
    wide = sum(part.count - layout.rounded(part) for part in shape.parts)
    scales = sum(layout.scales(part) for part in shape.parts)
    beside, held = ("", "") if layout.draft is None else ("draft - ", f"{room.draft:.2f} - ")
    if layout.adapters is not None:
        beside, held = f"{beside}adapters - ", f"{held}{room.adapters:.2f} - "
    rows = [
        (
            "weights",
            "quantized x bits/8 + (embeddings, logits, norms) x 2 B" + (" + scales x 4 B" if scales else ""),
            f"{short(shape.num_parameters - wide)} x {bits:g}/8 + {short(wide)} x 2"
            + (f" + {short(scales)} x 4" if scales else "")
            + f" = {size(study.weight_bytes)}",
        ),
        ("KV bytes a token", *_kv_bytes(study)),
        (
            "KV room a GPU",
            f"HBM - weights - {beside}workspace - activations - margin",
            f"{room.hbm:.2f} - {room.weights:.2f} - {held}{room.workspace} - {room.activations} - {room.margin} = {kv:.2f} GiB",
        ),
        (
            "KV tokens",
            "room / KV bytes a token on a GPU",
            f"{kv:.2f} GiB / {size(layout.held_token_bytes_device)} = {short(room.kv_tokens)}",
        ),
    ]
    row = study.contexts[0]
    page = f"whole pages of {memory.PAGE_SIZE}" + (", at most the window in a windowed layer" if any(shape.windows) else "")
    text = f"{kv:.2f} GiB / {size(row.kv_bytes_device)} = {row.requests:,} at {length(row.context)}"
    states = " and its recurrent states, twice: with a snapshot" if shape.recurrent else ""
    if shape.recurrent:
        rows.append(_state_bytes(study))
    return [*rows, ("concurrency", f"room / KV bytes of a request ({page}){states}", text)]


def _state_bytes(study: Study) -> tuple[str, str, str]:
    layout, shape = study.layout, study.layout.shape
    net, total = shape.recurrent, shape.state_bytes(memory.ACTIVATION_BYTES)
    assert net is not None
    heads, keys, values = net.state
    numbers = f"{shape.recurrent_layers} x ({heads} x {keys} x {values} x 4 + {net.width - 1} x {net.channels} x 2)"
    formula = "L x (H x D x V x 4 + (W - 1) x C x 2), of layers with states"
    return "state bytes a request", formula, f"{numbers} = {size(total)}; a GPU {size(layout.state_bytes_device)}"


def _kv_bytes(study: Study) -> tuple[str, str]:
    layout, shape = study.layout, study.layout.shape
    width, total, one = KV_BYTES[layout.kv_dtype], size(study.kv_token_bytes), size(study.kv_token_bytes_device)
    scale = memory.KV_SCALE_BYTES[layout.kv_dtype]
    if shape.latent:
        mla = shape.latent
        words, sizes = ["latent", "rotary key"], [mla.kv_rank, mla.rope_dim]
        if mla.indexer is not None:
            words.append("index key")
            sizes.append(mla.indexer.dim)
        each, numbers = _with_scale(f"({' + '.join(words)}) x bytes", f"({' + '.join(map(str, sizes))}) x {width}", scale)
        return f"L x {each}", f"{len(shape.cache_windows)} x {numbers} = {total}"
    most = max(shape.layer_heads, key=lambda heads: heads.kv_heads * heads.head_dim)
    each, numbers = _with_scale("D x bytes", f"{most.head_dim} x {width}", scale)
    numbers = f"2 x {len(shape.cache_windows)} x {most.kv_heads} x {numbers} = {total}; a GPU {one}"
    return f"2 (K, V) x L x K x {each}; a GPU has ceil(K / tp) heads", numbers


def _with_scale(each: str, numbers: str, scale: int) -> tuple[str, str]:
    """The bytes of a vector, in words and in numbers, with those of its scale if it has one."""
    return (f"({each} + {scale} of scale)", f"({numbers} + {scale})") if scale else (each, numbers)


def _steps(study: Study) -> list[tuple[str, str, str]]:
    layout, rates = study.layout, study.rates
    row, prefill = study.decode[len(study.decode) // 2], next(s for s in study.prefill if s.tokens == study.config.prompt)
    step, peak = row.step, roofline.machine(layout)
    floor_bytes = study.floor_s * peak.bandwidth
    payload = step.tokens * layout.shape.hidden_size * memory.ACTIVATION_BYTES
    one = roofline.all_reduce_s(payload, layout.tp, rates.link)
    count = roofline.ALL_REDUCES_A_LAYER * layout.shape.num_layers
    network = f"{count} x {one * 1e6:.1f} µs = {time(step.network_s)}" if layout.tp > 1 else "0 on one GPU"
    return [
        (
            "balance point",
            "peak FLOP/s / peak bytes/s",
            f"{peak.linear / 1e12:,.0f} T / {peak.bandwidth / 1e12:.2f} T = {study.balance:.0f} FLOP/B",
        ),
        (
            "decode floor",
            "weight bytes one token meets on a GPU / peak bandwidth",
            f"{floor_bytes / 1e9:.2f} GB / {peak.bandwidth / 1e9:,.0f} GB/s = {time(study.floor_s)}",
        ),
        (
            f"decode, B {step.tokens}",
            "max((weights + KV) / bandwidth, FLOPs / rate) + all-reduces + launch",
            (
                f"max({time(step.weights_s)} + {time(step.kv_s)}, {time(step.compute_s)}) + {time(step.network_s)}"
                f" + {time(step.launch_s)} = {time(step.total_s)}"
            ),
        ),
        (
            "all-reduces",
            "2 L x min(ring 2(N-1)/N b/link + 2(N-1) hop, one-shot (N-1) b/link + 2 hop); b = B x E x 2 B",
            f"b = {size(payload)}, link {rates.link / 1e9:.0f} GB/s, hop {roofline.HOP_S * 1e6:.0f} µs: {network}",
        ),
        (
            "decode intensity",
            "(2 x weights + attention) FLOPs / (weights + KV) bytes, on a GPU",
            (
                f"{(step.linear_flops + step.attention_flops) / 1e9:,.1f} G / {(step.weight_bytes + step.kv_bytes) / 1e9:,.2f} G"
                f" = {row.intensity:.0f} FLOP/B at B {step.tokens}"
            ),
        ),
        (
            f"prefill, {length(prefill.tokens)}",
            "2 x weights x S / rate + attention / BF16 rate, on a GPU; then as decode",
            (
                f"{prefill.linear_flops / 1e12:,.1f} T / {rates.linear / 1e12:,.0f} T + {prefill.attention_flops / 1e12:,.2f} T"
                f" / {rates.attention / 1e12:,.0f} T = {time(prefill.compute_s)}; with the rest {time(prefill.total_s)}"
            ),
        ),
        (
            "attention",
            "FLOPs for a token to see a position, all heads of a layer, / its KV bytes; both on a GPU",
            _attention(study),
        ),
    ]


def _attention(study: Study) -> str:
    layout = study.layout
    flops = layout.shape.attention_flops(decode=True)
    count = f"{flops:,}" if layout.shape.latent else f"4 x {layout.shape.num_heads} x {layout.shape.head_dim}"
    width = layout.read_bytes(layout.shape.usual_heads)
    return f"{count} / {layout.tp} / {width:,} = {study.attention_intensity:.0f} FLOP/B"


def _money(study: Study) -> list[tuple[str, str, str]]:
    one, load, tp = study.replica, study.load, study.layout.tp
    rows = [
        (
            "mean ITL",
            "decode step + prefill x batch / output",
            f"{time(one.decode_s)} + {time(one.prefill_s)} x {one.batch} / {load.output} = {time(one.itl_s)}",
        ),
        ("output tokens/s", "batch / mean ITL", f"{one.batch} / {time(one.itl_s)} = {short(one.tokens_per_s)}"),
        (
            "$ a million",
            "GPUs x $/hour / (tokens/s x 3600 x utilisation) x 1e6",
            (
                f"{tp} x {dollars(load.price_per_hour)} / ({short(one.tokens_per_s)} x 3600 x {load.utilisation:g}) x 1e6"
                f" = {dollars(one.usd_per_m_tokens_planned)}"
            ),
        ),
    ]
    if load.users is not None:
        text = f"{load.users:,} / ({one.batch} x {load.utilisation:g}) -> {study.fleet.needed:,}"
        rows.append(("replicas", "users / (batch x utilisation), rounded up", text))
    if load.requests_per_second is not None:
        text = f"{load.requests_per_second:g} / ({one.requests_per_s:.2f} x {load.utilisation:g}) -> {study.fleet.needed:,}"
        rows.append(("replicas", "requests/s / (a replica's x utilisation), rounded up", text))
    return rows
