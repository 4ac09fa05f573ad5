"""Audio front ends, spectra, connectionist temporal classification."""

import numpy as np
import tensorflow as tf

from real.kit import integers, model, normal, session, uniform

S = tf.signal


def tone(n, length, seed=0):
    t = np.arange(length) / 8000
    return np.stack([np.sin(2 * np.pi * (220 + 60 * i) * t) + 0.1 * normal(length, seed=i + seed) for i in range(n)]).astype("float32")


@model
def log_mel_features():
    def program(wave):
        stft = S.stft(wave, 200, 80, 256, pad_end=True)
        power = tf.abs(stft) ** 2
        mel = tf.tensordot(power, S.linear_to_mel_weight_matrix(20, 129, 8000, 60.0, 3800.0), 1)
        log_mel = tf.math.log(mel + 1e-6)
        mfcc = S.mfccs_from_log_mel_spectrograms(log_mel)[..., :13]
        delta = tf.pad(mfcc[:, 1:] - mfcc[:, :-1], [[0, 0], [1, 0], [0, 0]])
        return stft, log_mel, mfcc, delta, tf.math.angle(stft)

    return program, [{"wave": tone(2, 1200)}, {"wave": tone(1, 777)}]


@model
def keyword_front_end():
    def program(wav):
        audio, rate = tf.audio.decode_wav(wav, desired_channels=1, desired_samples=1600)
        spectrogram = tf.raw_ops.AudioSpectrogram(input=audio, window_size=256, stride=128, magnitude_squared=True)
        return audio, rate, spectrogram, tf.raw_ops.Mfcc(spectrogram=spectrogram, sample_rate=rate, dct_coefficient_count=12)

    feeds = [{"wav": np.array(tf.audio.encode_wav(tone(k, n).T * 0.4, 8000).numpy(), object)} for k, n in ((1, 1600), (2, 900))]
    return program, feeds + [{"wav": np.array(b"RIFF\x10\0\0\0WAVEfmt ", object)}]


@model
def reconstruction():
    def program(wave):
        stft = S.stft(wave, 64, 16, window_fn=S.hann_window)
        back = S.inverse_stft(stft, 64, 16, window_fn=S.inverse_stft_window_fn(16))
        mdct = S.mdct(wave[:, : tf.shape(wave)[1] // 16 * 16], 32)
        return stft, back, mdct, S.inverse_mdct(mdct), S.frame(wave, 10, 7, pad_end=True), S.overlap_and_add(S.frame(wave, 8, 4), 4)

    return program, [{"wave": tone(2, 320)}, {"wave": tone(1, 200)}]


@model
def transforms_of_all_lengths():
    def program(x, z):
        outs = [S.fft(z), S.ifft(z), S.rfft(x), S.irfft(S.rfft(x)), S.fft2d(z[None]), S.ifft2d(z[None]), S.rfft2d(x[None]), S.fft3d(z[None]), S.rfft(x, [9]),
                S.fftshift(x), S.ifftshift(x, axes=1)]
        for kind in (1, 2, 3, 4):
            outs.append(S.dct(x, kind))
            outs.append(S.idct(x, kind, norm=None))
        return outs + [S.dct(x, 2, norm="ortho"), S.kaiser_window(9, 5.0), S.vorbis_window(8), S.hamming_window(7, periodic=False), S.kaiser_bessel_derived_window(8)]

    make = lambda n, k, kind: {"x": normal(n, k, dtype=kind), "z": (normal(n, k) + 1j * normal(n, k, seed=1)).astype("complex128" if kind == "float64" else "complex64")}
    return program, [make(4, 6, "float32"), make(3, 7, "float32"), make(5, 13, "float32")]


@model
def transforms_in_double():
    def program(x):
        z = S.rfft(x)
        return z, S.irfft(z, [11]), S.dct(x), S.fft(tf.cast(x, tf.complex128)), S.rfft2d(x), S.irfft2d(S.rfft2d(x))

    return program, [{"x": normal(n, k, dtype="float64")} for n, k in ((2, 11), (7, 16), (1, 2))]


@model
def ctc_training_loss():
    def program(logits, labels, label_length, logit_length):
        dense = tf.nn.ctc_loss(labels, logits, label_length, logit_length, logits_time_major=False, blank_index=-1)
        sparse = tf.sparse.from_dense(labels)
        old = tf.compat.v1.nn.ctc_loss(sparse, logits, logit_length, time_major=False, ignore_longer_outputs_than_inputs=True)
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss = tf.reduce_sum(tf.nn.ctc_loss(labels, logits, label_length, logit_length, logits_time_major=False, blank_index=0))
        return dense, old, loss, tape.gradient(loss, logits)

    def feed(n, t, k):
        return {"logits": normal(n, t, 6), "labels": integers(1, 5, n, k), "label_length": integers(1, k + 1, n), "logit_length": np.full(n, t, "int32")}

    return program, [feed(3, 9, 4), feed(1, 5, 2)]


@model
def ctc_decoders():
    def program(logits, lengths):
        (greedy,), score = tf.nn.ctc_greedy_decoder(logits, lengths)
        (merged,), _ = tf.nn.ctc_greedy_decoder(logits, lengths, merge_repeated=False)
        beams, probs = tf.nn.ctc_beam_search_decoder(logits, lengths, beam_width=5, top_paths=2)
        distance = tf.edit_distance(tf.cast(greedy, tf.int64), tf.cast(beams[0], tf.int64))
        return greedy, score, merged, beams, probs, distance, tf.sparse.to_dense(beams[0], default_value=-1)

    return program, [{"logits": normal(8, 3, 5) * 2, "lengths": np.array([8, 5, 3], "int32")}, {"logits": normal(4, 1, 5), "lengths": np.array([4], "int32")}]


@session
def microphone_frames():
    """Framing, windows and energies as a TensorFlow 1 graph."""
    v1 = tf.compat.v1
    wave = v1.placeholder(tf.float32, [None])
    frames = S.frame(wave, 40, 20)
    energy = tf.reduce_sum(tf.square(frames), -1)
    zero = tf.reduce_sum(tf.cast(tf.not_equal(tf.sign(frames[:, 1:]), tf.sign(frames[:, :-1])), tf.int32), -1)
    auto = tf.math.real(S.ifft(tf.cast(tf.abs(S.fft(tf.cast(frames, tf.complex64))) ** 2, tf.complex64)))
    voiced = tf.boolean_mask(tf.range(tf.size(energy)), energy > tf.reduce_mean(energy))
    return [([energy, zero, auto, voiced], {wave: tone(1, n)[0]}) for n in (200, 61, 40)]


@model
def vocoder_phase():
    def program(magnitude):
        """Some rounds of Griffin and Lim."""
        angles = tf.zeros_like(magnitude)
        for _ in tf.range(3):
            wave = S.inverse_stft(tf.cast(magnitude, tf.complex64) * tf.exp(tf.complex(0.0, 1.0) * tf.cast(angles, tf.complex64)), 32, 8)
            angles = tf.math.angle(S.stft(wave, 32, 8))
        return wave

    return program, [{"magnitude": uniform(n, 9, 17) + 0.1} for n in (1, 2)]


@model
def quantized_companding():
    def program(x):
        mu = 255.0
        code = tf.sign(x) * tf.math.log1p(mu * tf.abs(x)) / tf.math.log1p(mu)
        levels = tf.cast((code + 1) / 2 * mu + 0.5, tf.uint8)
        back = (tf.cast(levels, tf.float32) / mu) * 2 - 1
        return levels, tf.sign(back) / mu * (tf.pow(1 + mu, tf.abs(back)) - 1), tf.bitcast(tf.cast(x * 32767, tf.int16), tf.uint16)

    return program, [{"x": np.clip(normal(n, 30) / 3, -1, 1)} for n in (1, 2, 0)]
