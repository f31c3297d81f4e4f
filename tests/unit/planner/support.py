"""Layouts that several tests plan for."""

from jaxserve.planner import catalogue
from jaxserve.planner.memory import KvFormat, Layout, WeightFormat


def layout(
    model: str = "llama-3-70b",
    hardware: str = "h100",
    tp: int = 8,
    weights: WeightFormat = "fp8",
    kv_dtype: KvFormat = "bf16",
) -> Layout:
    return Layout(shape=catalogue.model(model), hardware=catalogue.hardware(hardware), tp=tp, weights=weights, kv_dtype=kv_dtype)
