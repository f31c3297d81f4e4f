from jaxserve.commands import Throughput


def test_what_is_counted_in_megabytes_has_a_throughput():
    now = [10.0]
    throughput = Throughput(lambda: now[0])
    assert throughput.said("loading weights, MB", 500) == ""
    assert throughput.said("compiling", 3) == ""
    now[0] = 14.0
    assert throughput.said("loading weights, MB", 500) == ""
    assert throughput.said("loading weights, MB", 6500) == "1.50 GB/s"
    assert throughput.said("compiling", 4) == ""
