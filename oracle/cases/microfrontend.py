"""AudioMicrofrontend."""

import numpy as np

from casekit import a, case, empty


def cases():
    rng = np.random.default_rng(7)
    t = np.arange(1200)
    tone = (12000 * np.sin(t * 0.2) + 6000 * np.sin(t * 0.031) + rng.normal(0, 900, t.size)).astype(np.int16)
    loud = a("int16", rng.integers(-(2**15), 2**15 - 1, t.size, endpoint=True))
    quiet = a("int16", rng.integers(-3, 4, t.size))
    silent = np.zeros(900, np.int16)
    edge = np.where(t % 2, 32767, -32768).astype(np.int16)
    for audio in (tone, loud, quiet, silent, edge):
        yield case("AudioMicrofrontend", audio)
        yield case("AudioMicrofrontend", audio, enable_pcan=True)
        yield case("AudioMicrofrontend", audio, enable_pcan=True, pcan_strength=0.5, pcan_offset=3.5, gain_bits=18,
                   sample_rate=8000, upper_band_limit=3800.0)
        yield case("AudioMicrofrontend", audio, enable_log=False, sample_rate=8000, upper_band_limit=3500.0)
    for how in ({"sample_rate": 1000, "window_size": 25, "window_step": 10, "num_channels": 5, "upper_band_limit": 450.0,
                 "lower_band_limit": 8.0},
                {"num_channels": 40}, {"num_channels": 1}, {"num_channels": 100}, {"window_size": 40, "window_step": 40},
                {"smoothing_bits": 5, "even_smoothing": 0.3, "odd_smoothing": 0.7, "min_signal_remaining": 0.5},
                {"scale_shift": 3}, {"left_context": 2, "right_context": 1}, {"left_context": 3, "zero_padding": True},
                {"right_context": 4, "zero_padding": True, "frame_stride": 2}, {"frame_stride": 3},
                {"out_scale": 25}, {"out_type": "float", "out_scale": 7}, {"window_size": 4, "window_step": 2},
                {"window_size": 2, "window_step": 1, "sample_rate": 16000, "num_channels": 4}):
        yield case("AudioMicrofrontend", tone, **how)
    yield case("AudioMicrofrontend", tone[:100])
    yield case("AudioMicrofrontend", tone[:400])
    yield case("AudioMicrofrontend", empty("int16", 0), left_context=1)
    for how in ({"upper_band_limit": 8100.0}, {"lower_band_limit": 9000.0, "upper_band_limit": 9500.0}):
        yield case("AudioMicrofrontend", tone, fails=True, **how)
    yield case("AudioMicrofrontend", tone[None], fails=True)
