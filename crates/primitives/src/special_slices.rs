//! Special functions of slices, which they overwrite: loops over [`bessel`] and [`special_vectors`].

use crate::{bessel, special_vectors, vectorized};

macro_rules! slices {
    ($($(#[$doc:meta])* $name:ident = $f:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name(x: &mut [f64]) {
            vectorized(
                #[inline(always)]
                || {
                    for x in x.iter_mut() {
                        *x = $f(*x);
                    }
                },
            );
        }
    )*};
}
slices! {
    /// [`bessel::i0`].
    i0 = bessel::i0::<false>;
    /// [`bessel::i0`] in single precision.
    i0_single = bessel::i0::<true>;
    /// [`bessel::i0e`].
    i0e = bessel::i0e::<false>;
    /// [`bessel::i0e`] in single precision.
    i0e_single = bessel::i0e::<true>;
    /// [`bessel::i1`].
    i1 = bessel::i1::<false>;
    /// [`bessel::i1`] in single precision.
    i1_single = bessel::i1::<true>;
    /// [`bessel::i1e`].
    i1e = bessel::i1e::<false>;
    /// [`bessel::i1e`] in single precision.
    i1e_single = bessel::i1e::<true>;
    /// [`bessel::k0`].
    k0 = bessel::k0::<false>;
    /// [`bessel::k0`] in single precision.
    k0_single = bessel::k0::<true>;
    /// [`bessel::k0e`].
    k0e = bessel::k0e::<false>;
    /// [`bessel::k0e`] in single precision.
    k0e_single = bessel::k0e::<true>;
    /// [`bessel::k1`].
    k1 = bessel::k1::<false>;
    /// [`bessel::k1`] in single precision.
    k1_single = bessel::k1::<true>;
    /// [`bessel::k1e`].
    k1e = bessel::k1e::<false>;
    /// [`bessel::k1e`] in single precision.
    k1e_single = bessel::k1e::<true>;
    /// [`bessel::j0`].
    j0 = bessel::j0;
    /// [`bessel::j1`].
    j1 = bessel::j1;
    /// [`bessel::y0`].
    y0 = bessel::y0;
    /// [`bessel::y1`].
    y1 = bessel::y1;
    /// [`special_vectors::digamma`].
    digamma = special_vectors::digamma;
    /// [`special_vectors::lgamma`].
    lgamma = special_vectors::lgamma;
    /// [`special_vectors::spence`].
    spence = special_vectors::spence;
    /// [`special_vectors::erf`].
    erf = special_vectors::erf;
    /// [`special_vectors::erfc`].
    erfc = special_vectors::erfc;
    /// The sine of [`special_vectors::fresnel`].
    fresnel_sin = fresnel::<true>;
    /// The cosine of [`special_vectors::fresnel`].
    fresnel_cos = fresnel::<false>;
}

#[inline(always)]
fn fresnel<const IS_SINE: bool>(x: f64) -> f64 {
    let (sine, cosine) = special_vectors::fresnel(x);
    if IS_SINE { sine } else { cosine }
}
