"""Recurrent layers and cells."""

import tensorflow as tf
from tensorflow import keras

from real.kit import integers, model, normal, session
from real.layers import functional

L = keras.layers


@model
def lstm_variants():
    x = keras.Input([None, 5], name="x")
    ys = [L.LSTM(6)(x), *L.LSTM(4, return_sequences=True, return_state=True)(x), L.LSTM(3, go_backwards=True)(x),
          L.LSTM(3, activation="relu", recurrent_activation="hard_sigmoid", use_bias=False)(x),
          L.LSTM(4, unit_forget_bias=False, unroll=False)(x)]
    return functional([x], ys), [{"x": normal(2, 7, 5)}, {"x": normal(1, 3, 5)}, {"x": normal(4, 1, 5)}]


@model
def gru_variants():
    x = keras.Input([6, 5], name="x")
    ys = [L.GRU(6)(x), L.GRU(4, reset_after=False, return_sequences=True)(x), L.GRU(3, unroll=True)(x),
          L.SimpleRNN(5, return_sequences=True)(x), L.Bidirectional(L.GRU(3, return_sequences=True), merge_mode="sum")(x)]
    return functional([x], ys), [{"x": normal(n, 6, 5)} for n in (1, 3)]


@model
def masked_bidirectional():
    x = keras.Input([None], dtype="int32", name="x")
    y = L.Embedding(9, 4, mask_zero=True)(x)
    y = L.Bidirectional(L.LSTM(5, return_sequences=True))(y)
    y = L.Bidirectional(L.LSTM(3), merge_mode="ave")(y)
    feeds = [{"x": integers(1, 9, 3, 6)}, {"x": integers(1, 9, 1, 4)}]
    feeds[0]["x"][1, 4:] = 0
    feeds[0]["x"][2, 1:] = 0
    return functional([x], [y]), feeds


@model
def stacked_cells():
    x = keras.Input([5, 4], name="x")
    y = L.RNN([L.LSTMCell(3), L.GRUCell(4), L.SimpleRNNCell(2)], return_sequences=True)(x)
    return functional([x], [y]), [{"x": normal(n, 5, 4)} for n in (2, 5)]


@model
def convolutional_lstm():
    x = keras.Input([4, 8, 7, 2], name="x")
    y = L.ConvLSTM2D(3, 3, padding="same", return_sequences=True)(x)
    z = L.ConvLSTM2D(2, 2, strides=2)(x)
    a = L.Reshape((4, 56, 2))(x)
    return functional([x], [y, z, L.ConvLSTM1D(2, 3)(a)]), [{"x": normal(n, 4, 8, 7, 2)} for n in (1, 2)]


@model
def sequence_to_sequence():
    source, target = keras.Input([None], dtype="int32", name="source"), keras.Input([None], dtype="int32", name="target")
    encoded, h, c = L.LSTM(6, return_sequences=True, return_state=True)(L.Embedding(20, 5)(source))
    decoded = L.LSTM(6, return_sequences=True)(L.Embedding(17, 5)(target), initial_state=[h, c])
    context = L.Attention()([decoded, encoded])
    return functional([source, target], [L.Dense(17, activation="softmax")(L.Concatenate()([context, decoded]))]), [
        {"source": integers(0, 20, n, a), "target": integers(0, 17, n, b)} for n, a, b in ((2, 6, 4), (1, 3, 8))]


@session
def block_cells():
    v1 = tf.compat.v1
    x = v1.placeholder(tf.float32, [5, 3, 4])
    raw = tf.raw_ops
    w = tf.constant(normal(10, 24))
    b = tf.constant(normal(24))
    zero = tf.zeros([3, 6])
    peep = tf.constant(normal(6))
    lengths = v1.placeholder(tf.int64, [])
    block = raw.BlockLSTM(seq_len_max=lengths, x=x, cs_prev=zero, h_prev=zero, w=w, wci=peep, wcf=peep, wco=peep, b=b,
                          forget_bias=1.0, cell_clip=3.0, use_peephole=True)
    second = raw.BlockLSTMV2(seq_len_max=lengths, x=x, cs_prev=zero, h_prev=zero, w=w, wci=peep, wcf=peep, wco=peep, b=b)
    cell = raw.LSTMBlockCell(x=x[0], cs_prev=zero, h_prev=zero, w=w, wci=peep, wcf=peep, wco=peep, b=b)
    gru = raw.GRUBlockCell(x=x[0], h_prev=zero, w_ru=tf.constant(normal(10, 12)), w_c=tf.constant(normal(10, 6)),
                           b_ru=tf.constant(normal(12)), b_c=tf.constant(normal(6)))
    fetches = [block.h, block.cs, second.h, cell.h, gru.h]
    return [(fetches, {x: normal(5, 3, 4), lengths: n}) for n in (5, 2)]


@model
def dynamic_loop_rnn():
    w, u = tf.Variable(normal(4, 6)), tf.Variable(normal(6, 6) * 0.3)

    def program(x, lengths):
        steps = tf.TensorArray(tf.float32, size=tf.shape(x)[1])
        state = tf.zeros([tf.shape(x)[0], 6])
        for t in tf.range(tf.shape(x)[1]):
            new = tf.tanh(x[:, t] @ w + state @ u)
            state = tf.where((t < lengths)[:, None], new, state)
            steps = steps.write(t, state)
        return state, tf.transpose(steps.stack(), [1, 0, 2]), tf.reverse_sequence(x, lengths, seq_axis=1)

    return program, [{"x": normal(3, 5, 4), "lengths": integers(1, 6, 3)}, {"x": normal(1, 2, 4), "lengths": integers(1, 3, 1)}], [w, u]
