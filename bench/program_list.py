"""The programs of `programs.py`: what people compute with TensorFlow besides networks.

A function returns the outputs of a program, given its feeds as tensors. `form` says how its graph is made: "v1" with loops and
conditionals of V1, "graph" with functional ones, "function" as a frozen tf.function.
"""

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
PROGRAMS = {}


def prog(about, form, feeds, dyn=None, init=False):
    """Registers a program. `dyn` has the shapes of feeds that are not those of their values."""

    def register(function):
        PROGRAMS[function.__name__] = {"function": function, "about": about, "form": form, "feeds": feeds,
                                       "shapes": dyn or {}, "init": init}
        return function

    return register


def rng(seed=0):
    return np.random.default_rng(seed)


def f32(*shape, seed=0):
    return rng(seed).standard_normal(shape).astype(np.float32)


def u32(*shape, seed=0):
    return rng(seed).random(shape).astype(np.float32)


def i32(below, *shape, seed=0):
    return rng(seed).integers(0, below, shape).astype(np.int32)


def positive_definite(n):
    a = rng().standard_normal((n, n))
    return a @ a.T / n + np.eye(n)


def picture(height, width):
    y, x = np.mgrid[0:height, 0:width]
    waves = np.stack([127 + 100 * np.sin(x / 17 + y / 31), 127 + 90 * np.cos(y / 13), x * 255 / width], -1)
    return np.clip(waves + rng().normal(0, 8, (height, width, 3)), 0, 255).astype(np.uint8)


def png(height, width):
    return np.array(tf.io.encode_png(picture(height, width)).numpy(), dtype=object)


WORDS = ("the a of cat dog runs blue green red quick brown fox jumps over lazy tensor graph node edge while loop cond fast"
         " slow engine").split()


def sentences(n, longest=12, seed=0):
    random = rng(seed)
    made = [" ".join(random.choice(WORDS, random.integers(3, longest))).encode() for _ in range(n)]
    return np.array(made, object)


@prog("k-means 10 Lloyd steps 4000x8 K16", "graph", lambda: dict(x=f32(4000, 8), c=f32(16, 8, seed=1)))
def kmeans(x, c):
    def body(i, c):
        d = tf.reduce_sum(c * c, 1) - 2 * tf.matmul(x, c, transpose_b=True)
        a = tf.argmin(d, 1, output_type=tf.int32)
        s = tf.math.unsorted_segment_sum(x, a, 16)
        n = tf.math.unsorted_segment_sum(tf.ones([4000]), a, 16)
        return i + 1, s / tf.maximum(n, 1)[:, None]

    _, c = tf.while_loop(lambda i, c: i < 10, body, [0, c])
    return [c]


@prog("k-means squared_difference, one_hot, 3-D", "v1", lambda: dict(x=u32(3000, 3), c=u32(8, 3, seed=1)))
def kmeans_rgb(x, c):
    def body(i, c, _):
        d = tf.reduce_sum(tf.math.squared_difference(x[:, None, :], c[None]), 2)
        a = tf.argmin(d, 1)
        h = tf.one_hot(a, 8)
        n = tf.matmul(h, x, transpose_a=True) / (tf.reduce_sum(h, 0)[:, None] + 1e-6)
        return i + 1, n, tf.reduce_max(tf.abs(n - c))

    i, c, e = v1.while_loop(lambda i, c, e: tf.logical_and(i < 12, e > 1e-7), body, [0, c, 1.0])
    return [i, c]


@prog(
    "k-nearest neighbours classify, L1 distance",
    "function",
    lambda: dict(q=f32(50, 16), x=f32(2000, 16, seed=1), y=i32(10, 2000)),
)
def knn(q, x, y):
    d = tf.reduce_sum(tf.abs(q[:, None] - x[None]), 2)
    v, i = tf.math.top_k(-d, 7)
    c = tf.reduce_sum(tf.one_hot(tf.gather(y, i), 10), 1)
    return [tf.argmax(c, 1), -v]


@prog(
    "t-SNE gradient step 300 points",
    "function",
    lambda: dict(
        p=(lambda a: (a + a.T) / (a + a.T).sum())(u32(300, 300)), y=f32(300, 2), mom=f32(300, 2, seed=1) * 0.01
    ),
)
def tsne(p, y, mom):
    s = tf.reduce_sum(y * y, 1)
    num = 1 / (1 + s[:, None] + s[None] - 2 * tf.matmul(y, y, transpose_b=True))
    num = tf.linalg.set_diag(num, tf.zeros([300]))
    q = tf.maximum(num / tf.reduce_sum(num), 1e-12)
    pq = (p - q) * num
    g = 4 * tf.reduce_sum(pq[:, :, None] * (y[:, None] - y[None]), 1)
    mom = 0.8 * mom - 100 * g
    y = y + mom
    return [y - tf.reduce_mean(y, 0), mom, tf.reduce_sum(p * tf.math.log(p / q + 1e-12))]


@prog(
    "object matching IoU matrix, greedy assign",
    "function",
    lambda: dict(
        a=np.concatenate([u32(200, 2) * 0.7, u32(200, 2) * 0.7 + 0.3 * u32(200, 2, seed=3)], 1),
        b=np.concatenate([u32(150, 2, seed=5) * 0.7, u32(150, 2, seed=5) * 0.7 + 0.3 * u32(150, 2, seed=6)], 1),
    ),
)
def iou(a, b):
    lt = tf.maximum(a[:, None, :2], b[None, :, :2])
    rb = tf.minimum(a[:, None, 2:], b[None, :, 2:])
    wh = tf.maximum(rb - lt, 0)
    it = wh[..., 0] * wh[..., 1]
    ar = lambda x: (x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1])
    i = it / (ar(a)[:, None] + ar(b)[None] - it)
    m = tf.argmax(i, 1)
    return [i, m, tf.where(tf.reduce_max(i, 1) > 0.3)]


@prog("point-cloud Chamfer + farthest point sampling", "function", lambda: dict(a=f32(400, 3), b=f32(350, 3, seed=1)))
def chamfer(a, b):
    d = tf.reduce_sum(tf.square(a[:, None] - b[None]), -1)
    c = tf.reduce_mean(tf.reduce_min(d, 1)) + tf.reduce_mean(tf.reduce_min(d, 0))
    md = tf.fill([400], 1e9)
    ta = tf.TensorArray(tf.int32, 32, element_shape=[])
    k = 0
    for i in tf.range(32):
        ta = ta.write(i, k)
        md = tf.minimum(md, tf.reduce_sum((a - a[k]) ** 2, 1))
        k = tf.argmax(md, output_type=tf.int32)
    return [c, ta.stack()]


@prog("N-body gravity 200 bodies, leapfrog 10 steps", "graph", lambda: dict(x=f32(200, 3), v=f32(200, 3, seed=1) * 0.1))
def nbody(x, v):
    def acc(x):
        d = x[None] - x[:, None]
        r = tf.reduce_sum(d * d, -1) + 0.01
        return tf.reduce_sum(d * (r**-1.5)[..., None], 1) / 200

    def body(i, x, v):
        v = v + 0.005 * acc(x)
        x = x + 0.01 * v
        return i + 1, x, v + 0.005 * acc(x)

    return tf.while_loop(lambda i, *_: i < 10, body, [0, x, v])[1:]


@prog("Sinkhorn optimal transport 150x150, log domain", "function", lambda: dict(x=f32(150, 2), y=f32(150, 2, seed=1)))
def sinkhorn(x, y):
    C = tf.reduce_sum((x[:, None] - y[None]) ** 2, 2) / 0.1
    f = tf.zeros([150])
    g = tf.zeros([150])
    la = -tf.math.log(150.0)
    for _ in tf.range(20):
        f = la - tf.reduce_logsumexp(g[None] - C, 1)
        g = la - tf.reduce_logsumexp(f[:, None] - C, 0)
    P = tf.exp(f[:, None] + g[None] - C)
    return [P, tf.reduce_sum(P * C)]


@prog("optical-flow warp, bilinear gather_nd", "function", lambda: dict(im=u32(2, 96, 128, 3), fl=f32(2, 96, 128, 2) * 3))
def warp(im, fl):
    B, H, W_ = 2, 96, 128
    gy, gx = tf.meshgrid(tf.range(H), tf.range(W_), indexing="ij")
    y = tf.cast(gy, tf.float32)[None] - fl[..., 0]
    x = tf.cast(gx, tf.float32)[None] - fl[..., 1]
    y0 = tf.clip_by_value(tf.cast(tf.floor(y), tf.int32), 0, H - 2)
    x0 = tf.clip_by_value(tf.cast(tf.floor(x), tf.int32), 0, W_ - 2)
    wy = tf.clip_by_value(y - tf.cast(y0, tf.float32), 0, 1)[..., None]
    wx = tf.clip_by_value(x - tf.cast(x0, tf.float32), 0, 1)[..., None]
    b = tf.broadcast_to(tf.range(B)[:, None, None], [B, H, W_])
    g = lambda yy, xx: tf.gather_nd(im, tf.stack([b, yy, xx], -1))
    return [
        (g(y0, x0) * (1 - wx) + g(y0, x0 + 1) * wx) * (1 - wy)
        + (g(y0 + 1, x0) * (1 - wx) + g(y0 + 1, x0 + 1) * wx) * wy
    ]


@prog("SSIM, PSNR, total variation of images", "function", lambda: dict(a=u32(2, 96, 96, 3), n=u32(2, 96, 96, 3, seed=1)))
def ssim(a, n):
    b = a * 0.8 + n * 0.2
    return [tf.image.ssim(a, b, 1.0), tf.image.psnr(a, b, 1.0), tf.image.total_variation(b)]


@prog("morphology: dilation, erosion, distance, uint8 threshold", "graph", lambda: dict(x=u32(1, 128, 128, 1)))
def morph(x):
    k = np.zeros((3, 3, 1), "f")
    d = tf.nn.dilation2d(x, k, [1, 1, 1, 1], "SAME", "NHWC", [1, 1, 1, 1])
    e = tf.nn.erosion2d(x, k, [1, 1, 1, 1], "SAME", "NHWC", [1, 1, 1, 1])
    g = d - e
    m = tf.cast(g > tf.reduce_mean(g), tf.uint8)
    return [m, tf.reduce_sum(tf.cast(m, tf.int32)), tf.math.count_nonzero(m, [1, 2])]


@prog(
    "PageRank, sparse matmul, until converged",
    "v1",
    lambda: dict(i=np.unique(rng().integers(0, 2000, (16000, 2)), axis=0)),
)
def pagerank(i):
    n = tf.shape(i)[0]
    deg = tf.math.unsorted_segment_sum(tf.ones([n]), i[:, 1], 2000)
    v = 1 / tf.gather(deg, i[:, 1])
    A = tf.sparse.SparseTensor(i, v, [2000, 2000])

    def body(k, r, d):
        nr = 0.15 / 2000 + 0.85 * tf.sparse.sparse_dense_matmul(A, r)
        nr /= tf.reduce_sum(nr)
        return k + 1, nr, tf.reduce_sum(tf.abs(nr - r))

    k, r, _ = v1.while_loop(lambda k, r, d: tf.logical_and(k < 50, d > 1e-5), body, [0, tf.ones([2000, 1]) / 2000, 1.0])
    return [r]


@prog(
    "set intersection, Jaccard of integer sets",
    "graph",
    lambda: dict(a=np.sort(i32(200, 64, 20), 1), b=np.sort(i32(200, 64, 20, seed=1), 1)),
)
def jaccard(a, b):
    i = tf.sets.intersection(a, b)
    u = tf.sets.union(a, b)
    r = tf.sets.size(i) / tf.sets.size(u)
    return [r, tf.sparse.to_dense(u, default_value=-1)]


@prog("time-series features: rolling windows std, autocorr", "function", lambda: dict(x=f32(50, 500)))
def rolling(x):
    w = tf.signal.frame(x, 24, 1)
    m = tf.reduce_mean(w, -1)
    s = tf.math.reduce_std(w, -1)
    z = (x[:, 23:] - m) / (s + 1e-6)
    mx = tf.reduce_max(w, -1)
    return [z, mx, tf.reduce_any(w > 2.5, -1), tf.math.reduce_variance(z, -1)]


@prog("Gaussian mixture EM, 3000x4, 6 comps", "graph", lambda: dict(x=f32(3000, 4), m=f32(6, 4, seed=1)))
def gmm(x, m):
    def body(i, m, v, p):
        l = tf.math.log(p) - 0.5 * tf.reduce_sum(
            tf.math.squared_difference(x[:, None], m[None]) / v[None] + tf.math.log(v)[None], 2
        )
        r = tf.nn.softmax(l)
        n = tf.reduce_sum(r, 0)
        m = tf.matmul(r, x, transpose_a=True) / n[:, None]
        v = tf.reduce_sum(r[..., None] * tf.math.squared_difference(x[:, None], m[None]), 0) / n[:, None] + 1e-3
        return i + 1, m, v, n / 3000

    return tf.while_loop(lambda i, *_: i < 5, body, [0, m, tf.ones([6, 4]), tf.ones([6]) / 6])[1:]


@prog(
    "gamma/beta statistics: igamma, betainc, lgamma",
    "function",
    lambda: dict(a=u32(3000) * 5 + 0.1, x=u32(3000, seed=1) * 6, p=u32(3000, seed=2)),
)
def stats(a, x, p):
    return [
        tf.math.igamma(a, x),
        tf.math.betainc(a, a + 1, p),
        tf.math.lgamma(a),
        tf.math.digamma(a),
        tf.math.ndtri(p * 0.98 + 0.01),
        tf.math.bessel_i0e(x),
        tf.math.erfinv(p * 0.9),
        tf.math.zeta(a + 1.5, a),
    ]


@prog("2-D heat equation f64 stencil, 40 steps", "v1", lambda: dict(u=rng().random((130, 130))))
def heat(u):
    def body(i, u):
        c = u[1:-1, 1:-1]
        n = c + 0.2 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * c)
        return i + 1, tf.pad(n, [[1, 1], [1, 1]], "SYMMETRIC")

    return [v1.while_loop(lambda i, u: i < 40, body, [0, u])[1]]


@prog(
    "Mandelbrot, complex64, 128x128, 40 steps",
    "function",
    lambda: dict(c=(np.linspace(-2, 1, 128)[None] + 1j * np.linspace(-1.5, 1.5, 128)[:, None]).astype(np.complex64)),
)
def mandel(c):
    z = tf.zeros_like(c)
    n = tf.zeros([128, 128], tf.int32)
    for _ in tf.range(40):
        z2 = z * z + c
        a = tf.abs(z2) < 4.0
        z = tf.where(a, z2, z)
        n += tf.cast(a, tf.int32)
    return [n]


@prog(
    "Hamming distance by xor and population_count",
    "function",
    lambda: dict(a=rng().integers(0, 2**63, (200, 4)), b=rng(1).integers(0, 2**63, (400, 4))),
)
def hamming(a, b):
    d = tf.reduce_sum(tf.cast(tf.raw_ops.PopulationCount(x=tf.bitwise.bitwise_xor(a[:, None], b[None])), tf.int32), 2)
    return list(tf.math.top_k(-d, 5))


@prog("decode png, area resize, sobel", "graph", lambda: dict(b=png(200, 200)))
def png_sobel(b):
    x = tf.io.decode_png(b, channels=3)
    x.set_shape([200, 200, 3])
    g = tf.image.rgb_to_grayscale(x)
    r = v1.image.resize_area(g[None], [96, 96])
    e = tf.image.sobel_edges(r)
    m = tf.sqrt(tf.reduce_sum(e * e, -1))
    q = tf.cast(tf.clip_by_value(m, 0, 255), tf.uint8)
    return [q, tf.reduce_mean(m, [1, 2])]


@prog(
    "beam search 4 beams 20 steps",
    "function",
    lambda: dict(emb=f32(300, 32), w=f32(32, 32, seed=2) * 0.3, o=f32(32, 300, seed=3) * 0.5, h0=f32(2, 32, seed=4)),
)
def beam_search(emb, w, o, h0):
    B, K, V, T = 2, 4, 300, 20
    h = tf.repeat(h0[:, None], K, 1)
    score = tf.tile(tf.constant([[0.0, -1e9, -1e9, -1e9]]), [B, 1])
    tok = tf.zeros([B, K], tf.int32)
    seq = tf.zeros([B, K, T], tf.int32)
    done = tf.zeros([B, K], tf.bool)
    for t in tf.range(T):
        h2 = tf.tanh(tf.einsum("bkd,de->bke", h, w) + tf.gather(emb, tok))
        lp = tf.nn.log_softmax(tf.einsum("bkd,dv->bkv", h2, o))
        eos = tf.one_hot(tf.fill([B, K], 1), V, 0.0, -1e9)
        lp = tf.where(done[..., None], eos, lp)
        tot = tf.reshape(score[..., None] + lp, [B, K * V])
        score, ix = tf.math.top_k(tot, K)
        par = ix // V
        tok = ix % V
        h = tf.gather(h2, par, batch_dims=1)
        seq = tf.gather(seq, par, batch_dims=1)
        done = tf.gather(done, par, batch_dims=1)
        seq = tf.where(tf.range(T)[None, None] == t, tok[..., None], seq)
        done = done | (tok == 1)
    return [seq, score]


@prog(
    "CRF Viterbi scan + backtrack",
    "v1",
    lambda: dict(u=f32(16, 40, 12), tr=f32(12, 12, seed=1), n=i32(30, 16, seed=2) + 10),
)
def viterbi(u, tr, n):
    ut = tf.transpose(u, [1, 0, 2])
    ta = v1.TensorArray(tf.int32, 39, element_shape=[16, 12])

    def body(t, s, ta):
        v = s[:, :, None] + tr[None]
        bp = tf.argmax(v, 1, output_type=tf.int32)
        ns = tf.reduce_max(v, 1) + ut[t]
        m = (t < n)[:, None]
        bp = tf.where(tf.tile(m, [1, 12]), bp, tf.tile(tf.range(12)[None], [16, 1]))
        return t + 1, tf.where(tf.tile(m, [1, 12]), ns, s), ta.write(t - 1, bp)

    _, s, ta = v1.while_loop(lambda t, s, ta: t < 40, body, [1, ut[0], ta])
    last = tf.argmax(s, 1, output_type=tf.int32)
    out = v1.TensorArray(tf.int32, 40, element_shape=[16], clear_after_read=False).write(39, last)
    bps = ta.stack()

    def back(t, cur, out):
        cur = tf.gather_nd(bps[t], tf.stack([tf.range(16), cur], 1))
        return t - 1, cur, out.write(t, cur)

    _, _, out = v1.while_loop(lambda t, c, o: t >= 0, back, [38, last, out])
    return [tf.transpose(out.stack()), tf.reduce_max(s, 1)]


@prog(
    "HMM forward logsumexp tf.scan 100",
    "graph",
    lambda: dict(le=f32(100, 8, 24), lt=f32(24, 24, seed=1), pi=f32(24, seed=2)),
)
def hmm(le, lt, pi):
    lt = tf.nn.log_softmax(lt)
    a0 = tf.nn.log_softmax(pi)[None] + le[0]
    al = tf.scan(lambda a, e: tf.reduce_logsumexp(a[:, :, None] + lt[None], 1) + e, le[1:], initializer=a0)
    return [tf.reduce_logsumexp(al[-1], 1), al]


@prog("matrix Kalman filter 6 state 3 obs 50", "function", lambda: dict(z=f32(50, 3)))
def kalman6(z):
    I = tf.eye(6)
    F = I + 0.1 * tf.linalg.diag(tf.ones(3), k=3)
    H = tf.eye(3, 6)
    Q = 0.01 * I
    Rm = 0.5 * tf.eye(3)
    x = tf.zeros([6, 1])
    P = I
    ta = tf.TensorArray(tf.float32, 50, element_shape=[6, 1])
    for t in tf.range(50):
        x = F @ x
        P = F @ P @ tf.transpose(F) + Q
        S = H @ P @ tf.transpose(H) + Rm
        K = P @ tf.transpose(H) @ tf.linalg.inv(S)
        x = x + K @ (z[t][:, None] - H @ x)
        P = (I - K @ H) @ P
        ta = ta.write(t, x)
    return [ta.stack(), P]


@prog("conjugate gradient 256, tolerance loop", "graph", lambda: dict(a=positive_definite(256).astype(np.float32), b=f32(256)))
def cg(a, b):
    def body(i, x, r, p, rs):
        ap = tf.linalg.matvec(a, p)
        al = rs / tf.tensordot(p, ap, 1)
        x += al * p
        r -= al * ap
        n = tf.tensordot(r, r, 1)
        return i + 1, x, r, r + n / rs * p, n

    o = tf.while_loop(
        lambda i, x, r, p, rs: tf.logical_and(i < 40, rs > 1e-9),
        body,
        [0, tf.zeros_like(b), b, b, tf.tensordot(b, b, 1)],
    )
    return [o[0], o[1]]


@prog(
    "GP regression f64 cholesky 200",
    "graph",
    lambda: dict(x=rng().random((200, 3)), y=rng(1).random((200, 1)), q=rng(2).random((100, 3)), l=np.array(0.5)),
)
def gp(x, y, q, l):
    def k(a, b):
        return tf.exp(
            -0.5
            * (tf.reduce_sum(a * a, 1)[:, None] + tf.reduce_sum(b * b, 1)[None] - 2 * tf.matmul(a, b, transpose_b=True))
            / l**2
        )

    L = tf.linalg.cholesky(k(x, x) + 0.01 * tf.eye(200, dtype=tf.float64))
    al = tf.linalg.cholesky_solve(L, y)
    ks = k(x, q)
    v = tf.linalg.triangular_solve(L, ks)
    return [
        tf.matmul(ks, al, transpose_a=True),
        1 - tf.reduce_sum(v * v, 0),
        -0.5 * tf.reduce_sum(y * al) - tf.reduce_sum(tf.math.log(tf.linalg.diag_part(L))),
    ]


@prog("log-mel + MFCC of one second", "function", lambda: dict(a=f32(1, 16000)))
def mfcc(a):
    s = tf.signal.stft(a, 400, 160, 512)
    m = tf.abs(s) ** 2
    w = tf.signal.linear_to_mel_weight_matrix(64, 257, 16000, 80.0, 7600.0)
    l = tf.math.log(tf.tensordot(m, w, 1) + 1e-6)
    return [tf.signal.mfccs_from_log_mel_spectrograms(l)[..., :13], l]


@prog(
    "SSD postprocess, combined NMS",
    "function",
    lambda: dict(loc=f32(1, 1917, 4) * 0.5, cls=f32(1, 1917, 21, seed=1) - 3, anc=u32(1917, 4, seed=2) * 0.5 + 0.1),
)
def ssd_post(loc, cls, anc):
    cy, cx, h, w = tf.unstack(anc, axis=1)
    t = loc / tf.constant([10.0, 10.0, 5.0, 5.0])
    yc = t[..., 0] * h + cy
    xc = t[..., 1] * w + cx
    hh = tf.exp(t[..., 2]) * h
    ww = tf.exp(t[..., 3]) * w
    b = tf.stack([yc - hh / 2, xc - ww / 2, yc + hh / 2, xc + ww / 2], -1)
    s = tf.sigmoid(cls)[..., 1:]
    o = tf.image.combined_non_max_suppression(b[:, :, None], s, 20, 100, 0.5, 0.3)
    return list(o)


@prog(
    "graph attention, 2000 nodes 10000 edges",
    "function",
    lambda: dict(
        x=f32(2000, 32),
        src=i32(2000, 10000),
        dst=np.sort(i32(2000, 10000, seed=1)),
        w=f32(32, 32, seed=2) * 0.2,
        a=f32(64, 1, seed=3) * 0.2,
    ),
)
def gat(x, src, dst, w, a):
    for _ in range(2):
        h = x @ w
        hs = tf.gather(h, src)
        hd = tf.gather(h, dst)
        e = tf.nn.leaky_relu(tf.concat([hs, hd], 1) @ a)[:, 0]
        m = tf.math.unsorted_segment_max(e, dst, 2000)
        ex = tf.exp(e - tf.gather(m, dst))
        z = tf.math.unsorted_segment_sum(ex, dst, 2000)
        al = ex / (tf.gather(z, dst) + 1e-9)
        x = tf.nn.elu(tf.math.unsorted_segment_sum(al[:, None] * hs, dst, 2000))
    return [x, tf.math.segment_mean(tf.gather(x, src), dst)]


@prog("RK4 Lorenz, 1000 systems, 100 steps", "graph", lambda: dict(y=f32(3, 1000)))
def rk4(y):
    def f(s):
        x, y, z = s[0], s[1], s[2]
        return tf.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])

    def body(i, s):
        h = 0.005
        a = f(s)
        b = f(s + h / 2 * a)
        c = f(s + h / 2 * b)
        d = f(s + h * c)
        return i + 1, s + h / 6 * (a + 2 * b + 2 * c + d)

    return [tf.while_loop(lambda i, s: i < 100, body, [0, y])[1]]


@prog(
    "boosted trees, 100 x depth 6, gather_nd",
    "v1",
    lambda: dict(x=f32(64, 20), feat=i32(20, 100, 63), thr=f32(100, 63, seed=1), leaf=f32(100, 64, seed=2)),
)
def gbdt(x, feat, thr, leaf):
    B, T = 64, 100
    tr = tf.tile(tf.range(T)[None], [B, 1])
    bi = tf.tile(tf.range(B)[:, None], [1, T])
    node = tf.zeros([B, T], tf.int32)
    for _ in range(6):
        ix = tf.stack([tr, node], -1)
        f = tf.gather_nd(feat, ix)
        v = tf.gather_nd(x, tf.stack([bi, f], -1))
        node = 2 * node + 1 + tf.cast(v > tf.gather_nd(thr, ix), tf.int32)
    return [tf.sigmoid(tf.reduce_sum(tf.gather_nd(leaf, tf.stack([tr, node - 63], -1)), 1) * 0.1)]


@prog(
    "ALS: batched normal equations rank 8",
    "function",
    lambda: dict(r=u32(200, 150), m=(u32(200, 150, seed=1) < 0.2).astype(np.float32), v=f32(150, 8, seed=2)),
)
def als(r, m, v):
    for _ in range(2):
        A = tf.einsum("ui,ia,ib->uab", m, v, v) + 0.1 * tf.eye(8)
        b = tf.einsum("ui,ui,ia->ua", m, r, v)
        u = tf.linalg.solve(A, b[..., None])[..., 0]
        A = tf.einsum("ui,ua,ub->iab", m, u, u) + 0.1 * tf.eye(8)
        b = tf.einsum("ui,ui,ua->ia", m, r, u)
        v = tf.linalg.solve(A, b[..., None])[..., 0]
    return [u, v, tf.reduce_sum(m * (r - tf.matmul(u, v, transpose_b=True)) ** 2)]


@prog("percentiles, MAD outliers, 3x3 median filter", "function", lambda: dict(x=f32(20000), im=u32(1, 96, 96, 1)))
def percentile(x, im):
    s = tf.sort(x)
    q = tf.constant([0.01, 0.25, 0.5, 0.75, 0.99]) * 19999.0
    lo = tf.cast(tf.floor(q), tf.int32)
    w = q - tf.floor(q)
    p = tf.gather(s, lo) * (1 - w) + tf.gather(s, lo + 1) * w
    mad = tf.sort(tf.abs(x - p[2]))[10000]
    out = tf.where(tf.abs(x - p[2]) > 4 * mad)
    pt = tf.image.extract_patches(im, [1, 3, 3, 1], [1, 1, 1, 1], [1, 1, 1, 1], "SAME")
    med = tf.math.top_k(pt, 5).values[..., 4]
    return [p, mad, out, med]


@prog("dynamic time warping, anti-diagonals", "function", lambda: dict(a=f32(8, 60), b=f32(8, 60, seed=1)))
def dtw(a, b):
    C = tf.abs(a[:, :, None] - b[:, None])
    n = 60
    inf = tf.fill([8, n + 1], 1e9)
    p2 = tf.concat([tf.zeros([8, 1]), inf[:, 1:]], 1)
    p1 = inf
    ii = tf.range(n + 1)
    for d in tf.range(2, 2 * n + 1):
        j = d - ii
        ok = (ii >= 1) & (j >= 1) & (j <= n)
        ix = tf.stack([tf.clip_by_value(ii - 1, 0, n - 1), tf.clip_by_value(j - 1, 0, n - 1)], 1)
        c = tf.transpose(tf.gather_nd(tf.transpose(C, [1, 2, 0]), ix))
        sh = lambda t: tf.concat([inf[:, :1], t[:, :-1]], 1)
        cur = tf.where(ok[None], c + tf.minimum(tf.minimum(sh(p1), p1), sh(p2)), 1e9)
        p2 = p1
        p1 = cur
    return [p1[:, n]]


@prog("word count: unicode split, unique, sort", "graph", lambda: dict(s=sentences(60, seed=9)))
def wordcount(s):
    w = tf.strings.split(s).flat_values
    u, i, c = tf.unique_with_counts(w)
    o = tf.argsort(c, direction="DESCENDING", stable=True)
    cp = tf.strings.unicode_decode(tf.gather(u, o), "UTF-8")
    return [tf.gather(u, o), tf.gather(c, o), cp.to_tensor(), tf.strings.substr(s, 1, 5), tf.strings.length(s)]


@prog(
    "split, static vocabulary, ragged embedding mean",
    "graph",
    lambda: dict(s=sentences(128), e=f32(40, 32)),
    init=True,
    dyn=dict(s=[None]),
)
def text_vocab(s, e):
    t = tf.lookup.StaticVocabularyTable(tf.lookup.KeyValueTensorInitializer(WORDS, np.arange(len(WORDS), dtype=np.int64)), 5)
    r = tf.strings.split(tf.strings.lower(s))
    ids = tf.ragged.map_flat_values(t.lookup, r)
    v = tf.ragged.map_flat_values(lambda i: tf.gather(e, i), ids)
    return [tf.reduce_mean(v, 1), ids.to_tensor(-1)]


@prog(
    "per-image random crop + rotate, map_fn",
    "function",
    lambda: dict(x=picture(72, 72)[None].repeat(8, 0), th=f32(8) * 0.3, off=i32(8, 8, 2)),
)
def crops(x, th, off):
    def one(a):
        im, o = a
        return tf.cast(tf.slice(im, [o[0], o[1], 0], [64, 64, 3]), tf.float32) / 255.0

    c = tf.map_fn(one, (x, off), fn_output_signature=tf.TensorSpec([64, 64, 3], tf.float32))
    co, si = tf.cos(th), tf.sin(th)
    z = tf.zeros_like(th)
    m = tf.stack([co, -si, 32 - 32 * co + 32 * si, si, co, 32 - 32 * si - 32 * co, z, z], 1)
    return [
        tf.raw_ops.ImageProjectiveTransformV3(
            images=c, transforms=m, output_shape=[64, 64], fill_value=0.0, interpolation="BILINEAR", fill_mode="REFLECT"
        )
    ]


@prog(
    "Floyd–Warshall 96 nodes", "graph", lambda: dict(d=np.where(u32(96, 96) < 0.2, u32(96, 96, seed=1), 1e3).astype("f"))
)
def floyd(d):
    return [
        tf.while_loop(lambda k, d: k < 96, lambda k, d: (k + 1, tf.minimum(d, d[:, k, None] + d[k][None])), [0, d])[1]
    ]


@prog("finite automaton, switch_case in loop", "function", lambda: dict(x=i32(4, 300)))
def automaton(x):
    s = tf.constant(0)
    n = tf.constant(0)
    for i in tf.range(300):
        s = tf.switch_case(
            x[i], [lambda: (s + 1) % 5, lambda: (s * 2) % 5, lambda: tf.maximum(s - 1, 0), lambda: 4 - s]
        )
        n += tf.cast(tf.equal(s, 0), tf.int32)
    return [s, n]


@prog("mini-batch SGD softmax regression in loop", "graph", lambda: dict(x=f32(2000, 20), y=i32(5, 2000)))
def sgd(x, y):
    def body(i, w, m):
        xb = x[i * 32 : i * 32 + 32]
        yb = y[i * 32 : i * 32 + 32]
        l = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=yb, logits=tf.matmul(xb, w)))
        g = tf.gradients(l, w)[0]
        m = 0.9 * m + g
        return i + 1, w - 0.1 * m, m

    return [tf.while_loop(lambda i, w, m: i < 62, body, [0, tf.zeros([20, 5]), tf.zeros([20, 5])])[1]]


@prog("power iteration of the transpose times the matrix, 2000x2000", "graph", lambda: dict(a=f32(2000, 2000)))
def power_iteration(a):
    def body(i, v):
        v = tf.matmul(a, tf.matmul(a, v), transpose_a=True)
        return i + 1, v / tf.norm(v)

    return [tf.while_loop(lambda i, v: i < 5, body, [0, tf.ones([2000, 1]) / 45.0])[1]]


@prog("1000 largest of 2 million, a sort of 300,000", "graph", lambda: dict(x=f32(2_000_000)))
def largest(x):
    values, places = tf.math.top_k(x, 1000)
    return [values, places, tf.sort(x[:300_000]), tf.argsort(x[:100_000])]


@prog(
    "layer normalization of 10000x512, any scale",
    "graph",
    lambda: dict(x=f32(10_000, 512), scale=f32(512), offset=f32(512, seed=1)),
)
def layer_norm(x, scale, offset):
    mean, variance = tf.nn.moments(x, [1], keepdims=True)
    return [(x - mean) / tf.sqrt(variance + 1e-3) * scale + offset]


@prog("Dormand–Prince, Van der Pol x 500, doubles", "function", lambda: dict(y=rng().standard_normal((2, 500))))
def runge_kutta(y):
    def slope(y):
        return tf.stack([y[1], 2.0 * (1 - y[0] ** 2) * y[1] - y[0]])

    rows = [
        [1 / 5],
        [3 / 40, 9 / 40],
        [44 / 45, -56 / 15, 32 / 9],
        [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
        [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
        [35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
    ]
    for _ in tf.range(60):
        slopes = [slope(y)]
        for row in rows:
            slopes.append(slope(y + 0.02 * tf.add_n([c * k for c, k in zip(row, slopes)])))
        y += 0.02 * tf.add_n([c * k for c, k in zip(rows[-1], slopes)])
    return [y]


@prog("multigrid V-cycles of a Poisson equation, doubles", "function", lambda: dict(f=rng().standard_normal((1, 64, 64, 1))))
def multigrid(f):
    star = tf.constant(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], float)[:, :, None, None])

    def around(u):
        return tf.nn.conv2d(u, star, 1, "SAME")

    def smooth(u, f):
        for _ in range(2):
            u = 0.2 * u + 0.8 * (around(u) - f) / 4
        return u

    def cycle(u, f, levels):
        u = smooth(u, f)
        if levels > 0:
            rest = tf.nn.avg_pool2d(f - (around(u) - 4 * u), 2, 2, "SAME") * 4
            coarse = cycle(tf.zeros_like(rest), rest, levels - 1)
            u += tf.repeat(tf.repeat(coarse, 2, 1), 2, 2)
        return smooth(u, f)

    u = tf.zeros_like(f)
    for _ in range(3):
        u = cycle(u, f, 3)
    return [u]


@prog("gradients of overlapping pools and of resizing", "graph", lambda: dict(x=f32(4, 48, 48, 16)))
def picture_gradients(x):
    pooled = [tf.nn.max_pool2d(x, 3, 1, "SAME"), tf.nn.max_pool2d(x, 3, 2, "SAME"), tf.nn.avg_pool2d(x, 3, 1, "SAME")]
    resized = [tf.image.resize(x, [80, 80], method) for method in ("bilinear", "nearest", "bicubic")]
    return [tf.gradients(tf.reduce_sum(y * y), x)[0] for y in pooled + resized]


@prog(
    "attention of one position, 8 x 12 heads, 512 kept",
    "graph",
    lambda: dict(q=f32(8, 12, 1, 64), k=f32(8, 12, 512, 64, seed=1), v=f32(8, 12, 512, 64, seed=2)),
)
def attention_step(q, k, v):
    return [tf.matmul(tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / 8.0), v)]


@prog(
    "products of integers and of complex numbers",
    "graph",
    lambda: dict(i=i32(1000, 256, 256), c=(f32(160, 160) + 1j * f32(160, 160, seed=1)).astype(np.complex64)),
)
def other_products(i, c):
    return [tf.matmul(i, i), tf.matmul(i, i, transpose_b=True), tf.matmul(c, c)]


def examples(n):
    """Returns serialized tf.Examples; the last feature is a word, as arrays of bytes lose zeros at their ends."""
    floats, ints = f32(n, 12), i32(1000, n, 6)

    def message(i):
        features = {f"float{j}": tf.train.Feature(float_list=tf.train.FloatList(value=[x])) for j, x in enumerate(floats[i])}
        features["series"] = tf.train.Feature(float_list=tf.train.FloatList(value=f32(40, seed=i)))
        features["tags"] = tf.train.Feature(int64_list=tf.train.Int64List(value=ints[i, : i % 7]))
        features["word"] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[WORDS[i % len(WORDS)].encode()]))
        return tf.train.Example(features=tf.train.Features(feature=features)).SerializePartialToString(deterministic=True)

    return np.array([message(i) for i in range(n)], dtype=object)


@prog("parse 500 tf.Examples of 15 features", "graph", lambda: dict(messages=examples(500)))
def parse_examples(messages):
    features = {f"float{j}": tf.io.FixedLenFeature([], tf.float32) for j in range(12)}
    features["series"] = tf.io.FixedLenFeature([40], tf.float32)
    features["tags"] = tf.io.VarLenFeature(tf.int64)
    features["word"] = tf.io.FixedLenFeature([], tf.string)
    parsed = tf.io.parse_example(messages, features)
    floats = tf.stack([parsed[f"float{j}"] for j in range(12)], 1)
    return [floats, parsed["series"], tf.sparse.to_dense(parsed["tags"]), tf.strings.length(parsed["word"])]


@prog("spherical coordinates and hyperbolic functions", "graph", lambda: dict(x=f32(100_000, 3), d=rng().random(50_000)))
def angles(x, d):
    radius = tf.norm(x, axis=1)
    azimuth, polar = tf.atan2(x[:, 1], x[:, 0]), tf.acos(x[:, 2] / radius)
    return [azimuth, polar, tf.asinh(radius), tf.atanh(tf.tanh(azimuth)), tf.atan2(d, 1 - d), tf.math.log1p(d) * tf.math.expm1(d)]


@prog(
    "look up 50,000 identifiers in a table, gather their vectors",
    "v1",
    lambda: dict(ids=rng().integers(0, 40_000, 50_000)),
    init=True,
)
def identifiers(ids):
    keys = tf.constant(rng(1).permutation(60_000)[:20_000].astype(np.int64))
    initializer = tf.lookup.KeyValueTensorInitializer(keys, tf.range(20_000, dtype=tf.int64))
    rows = tf.lookup.StaticHashTable(initializer, -1).lookup(ids)
    vectors = tf.gather(tf.constant(f32(20_000, 8)), tf.maximum(rows, 0))
    return [rows, tf.reduce_sum(vectors, 0)]


@prog("three layers of bfloat16", "graph", lambda: dict(x=f32(256, 512)))
def bfloat16_layers(x):
    y = tf.cast(x, tf.bfloat16)
    for i in range(3):
        y = tf.nn.relu(tf.matmul(y, tf.cast(tf.constant(f32(512, 512, seed=i) / 16), tf.bfloat16)))
    return [tf.cast(y, tf.float32)]


@prog("Keras' Adam for a million weights: sums into variables", "v1", lambda: dict(g=f32(1000, 1000)), init=True)
def keras_adam(g):
    w, m, v = (tf.compat.v1.get_variable(name, g.shape, use_resource=True, initializer=tf.compat.v1.ones_initializer()) for name in "wmv")
    with tf.control_dependencies([m.assign_add((g - m) * 0.1), v.assign_add((tf.square(g) - v) * 0.001)]):
        step = w.assign_sub(0.01 * m.read_value() / (tf.sqrt(v.read_value()) + 1e-7))
    return [tf.reduce_mean(step)]


@prog("gradients of the last layers of a network for small pictures", "graph", lambda: dict(x=f32(8, 4, 4, 256)))
def last_layers(x):
    filters = [tf.constant(f32(3, 3, i, o, seed=o) / 48) for i, o in ((256, 512), (512, 512), (512, 512))]
    y = x
    for f in filters:
        y = tf.nn.relu(tf.nn.conv2d(y, f, 2 if y.shape[1] == 4 else 1, "SAME"))
    return [tf.reduce_sum(d, [0, 1]) for d in tf.gradients(tf.reduce_mean(y), filters)]


@prog("position codes and a mask, computed of ranges", "graph", lambda: dict(x=f32(512, 512)))
def position_codes(x):
    rates = tf.pow(10000.0, -tf.range(256, dtype=tf.float32) / 256.0)
    angles = tf.range(512, dtype=tf.float32)[:, None] * rates
    mask = tf.linalg.band_part(tf.ones([512, 512]), -1, 0)
    return [tf.reduce_sum((x + tf.concat([tf.sin(angles), tf.cos(angles)], 1)) * mask, 1)]


@prog("an option's price by its characteristic function, in complex doubles", "graph", lambda: dict(strike=1 + rng().random(50)))
def option_prices(strike):
    u = tf.linspace(tf.constant(0.01, tf.float64), 60.0, 1000)[None, :]
    log_strike = tf.math.log(strike)[:, None]
    z = tf.complex(u * 0.3, 0.5 - 0.1 * log_strike * u)
    d = tf.sqrt(z * z + tf.complex(u * u + 1.0, u))
    value = tf.exp(-d) / (1.0 + tf.exp(-2.0 * d)) * tf.math.log(d + 1.5)
    turned = tf.math.real(value) * tf.cos(u * log_strike) + tf.math.imag(value) * tf.sin(u * log_strike)
    return [tf.reduce_sum(turned, 1)]


@prog("a decoder's caches, updated 64 times", "function", lambda: dict(x=f32(4, 64)))
def decoder_caches(x):
    from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_dynamic_update_slice

    def body(i, x, keys):
        keys = xla_dynamic_update_slice(keys, x[:, None], tf.stack([0, i, 0]))
        weights = tf.nn.softmax(tf.linalg.matvec(keys, x) / 8.0)
        return i + 1, tf.tanh(tf.linalg.matvec(keys, weights, transpose_a=True)), keys

    return [tf.while_loop(lambda i, x, keys: i < 64, body, (0, x, tf.zeros([4, 64, 64])))[1]]
