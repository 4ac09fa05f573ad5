//! Permutations against index arithmetic.

use super::*;
use crate::isa::testing::TwoThreads;
use ferroflow_sync::Inline;

fn compare(shape: &[usize], perm: &[usize]) {
    let total: usize = shape.iter().product();
    for elem in [1, 2, 3, 4, 8, 16] {
        let src: Vec<u8> = (0..total * elem)
            .map(|i| (i * 31 + i / 251) as u8)
            .collect();
        let mut want = vec![0; src.len()];
        for i in 0..total {
            let mut rest = i;
            let mut index = vec![0; shape.len()];
            for a in (0..shape.len()).rev() {
                index[a] = rest % shape[a];
                rest /= shape[a];
            }
            let to = perm.iter().fold(0, |to, &a| to * shape[a] + index[a]);
            want[to * elem..(to + 1) * elem].copy_from_slice(&src[i * elem..(i + 1) * elem]);
        }
        for par in [&Inline as &dyn Parallelism, &TwoThreads] {
            let mut dst = vec![9; src.len()];
            permute(par, elem, shape, perm, &src, &mut dst);
            assert!(dst == want, "{shape:?} {perm:?} {elem}");
            if elem == 3 {
                let (src, mut dst) = (src.as_chunks::<3>().0, vec![[9; 3]; total]);
                permute_elements(par, shape, perm, src, &mut dst);
                assert!(dst.as_flattened() == want, "{shape:?} {perm:?}");
            }
        }
    }
}

#[test]
fn narrow_planes() {
    for narrow in 1..9 {
        for wide in [1, 2, 3, 4, 5, 7, 8, 13, 20, 40] {
            compare(&[9, narrow, wide], &[0, 2, 1]);
            compare(&[9, wide, narrow], &[0, 2, 1]);
            compare(&[2, wide, 3, narrow], &[0, 3, 2, 1]);
        }
    }
}

#[test]
fn every_order() {
    compare(&[], &[]);
    compare(&[5], &[0]);
    for shape in [
        [1, 1],
        [3, 5],
        [8, 8],
        [33, 70],
        [16, 200],
        [0, 3],
        [200, 300],
    ] {
        compare(&shape, &[1, 0]);
        compare(&shape, &[0, 1]);
    }
    let perms = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    for shape in [[2, 3, 4], [9, 17, 33], [1, 7, 9], [5, 1, 4], [40, 9, 64]] {
        perms.iter().for_each(|p| compare(&shape, p));
    }
    for perm in [
        [0, 2, 1, 3],
        [0, 3, 1, 2],
        [0, 2, 3, 1],
        [3, 2, 1, 0],
        [2, 0, 3, 1],
    ] {
        compare(&[2, 9, 12, 16], &perm);
        compare(&[3, 5, 1, 10], &perm);
    }
}

#[test]
fn planes() {
    let src: Vec<u8> = (0..12).collect();
    let mut dst = [0; 12];
    permute(&Inline, 2, &[2, 3], &[1, 0], &src, &mut dst);
    assert_eq!(dst, [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]);
}
