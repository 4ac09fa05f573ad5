"""Gradients of fused LSTM layers and of the loss of connectionist temporal classification."""

import numpy as np
import tensorflow as tf
from gradients import case

raw = tf.raw_ops
F = np.float32


def random(b, *shape):
    return b.x((b.random.randn(*shape) * 0.5).astype(F))


for peephole in (False, True):
    @case(name=f"block_lstm_{peephole}", numeric=False, tol=1e-5)
    def block_lstm(b, peephole=peephole):
        y = raw.BlockLSTM(seq_len_max=np.int64(3), x=random(b, 3, 2, 4), cs_prev=random(b, 2, 5),
                          h_prev=random(b, 2, 5), w=random(b, 9, 20), wci=random(b, 5), wcf=random(b, 5),
                          wco=random(b, 5), b=random(b, 20), use_peephole=peephole)
        return [y.h * y.h, y.cs * 0.5]


@case(numeric=False, tol=1e-5)
def ctc_loss(b):
    at = tf.constant([[0, 0], [0, 1], [0, 2], [1, 0]], tf.int64)
    loss = raw.CTCLoss(inputs=random(b, 6, 2, 4), labels_indices=at, labels_values=[0, 1, 1, 2],
                       sequence_length=[6, 4]).loss
    return loss * loss


@case(numeric=False, tol=1e-6)  # the loss itself has single precision
def ctc_loss_double(b):
    at = tf.constant([[0, 0], [0, 1], [1, 0]], tf.int64)
    x = b.x([5, 2, 4])
    return raw.CTCLoss(inputs=x, labels_indices=at, labels_values=[0, 1, 2], sequence_length=[5, 4]).loss
