//! Tests of tensors: sharing, inline scalars, items, invalid sizes.

use super::*;
use ferroflow_base::Code;

#[test]
fn views_share_and_writes_copy() {
    let base = Tensor::from_slice([4, 4], &(0..16).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
    let mut view = base.view(4, Shape::from([2, 4])).unwrap();
    assert!(!view.is_unique());
    view.slice_mut::<f32>().unwrap()[0] = 100.0;
    assert_eq!(base.slice::<f32>().unwrap()[4], 4.0);
    assert_eq!(view.slice::<f32>().unwrap()[..2], [100.0, 5.0]);
    assert!(base.view(15, Shape::from([2])).is_err());
}

#[test]
fn scalars_are_inline_and_plain() {
    let mut t = Tensor::scalar(2.5f64);
    assert!(t.is_unique());
    assert_eq!(t.bytes().unwrap(), 2.5f64.to_le_bytes());
    assert_eq!(t.to_scalar::<f64>().unwrap(), 2.5);
    assert_eq!(size_of::<Option<Tensor>>(), 16);
}

#[test]
fn items_of_every_dtype() {
    for &dtype in DType::ALL {
        let mut t = Tensor::zeros(dtype, Shape::from([3, 5])).unwrap();
        let n = crate::dispatch_items!(dtype, T => {
            t.items_mut::<T>().unwrap()[7] = Default::default();
            t.items::<T>().unwrap().len()
        });
        assert_eq!(n, 15, "{dtype}");
    }
}

#[test]
fn narrow_integers_from_bytes_are_extended() {
    let rows = [
        (DType::Int4, vec![1i8, -3, 7, -8]),
        (DType::Uint4, vec![1, 13, 7, 8]),
        (DType::Int2, vec![1, 1, -1, 0]),
        (DType::Uint2, vec![1, 1, 3, 0]),
        (DType::Float4E2m1fn, vec![1, 13, 7, 8]),
    ];
    for (dtype, expect) in rows {
        // TensorFlow sets the lower half of a byte only.
        let t = Tensor::from_bytes(dtype, Shape::from([4]), &[0x01, 0x0d, 0x07, 0x08]).unwrap();
        assert_eq!(
            t.bitcast(DType::Int8).unwrap().slice::<i8>().unwrap(),
            expect
        );
    }
}

#[test]
fn bools_from_bytes_are_normalised() {
    let t = Tensor::from_bytes(DType::Bool, Shape::from([3]), &[0, 1, 7]).unwrap();
    assert_eq!(t.slice::<bool>().unwrap(), [false, true, true]);
}

#[test]
fn bad_sizes_are_errors() {
    assert!(Tensor::from_slice([3], &[1i32]).is_err());
    assert!(Tensor::zeros(DType::Float, Shape::from([1 << 40, 1 << 40])).is_err());
    assert!(Tensor::from_bytes(DType::Float, Shape::from([2]), &[0; 7]).is_err());
}

/// Memory of a device, which does not exist.
struct Elsewhere;

// SAFETY: the host never follows the address of such a block.
unsafe impl crate::MemoryBlock for Elsewhere {
    fn ptr(&self) -> std::ptr::NonNull<u8> {
        std::ptr::NonNull::dangling()
    }

    fn is_host(&self) -> bool {
        false
    }

    fn read(&self, offset: usize, len: usize) -> Result<Vec<u8>> {
        let bytes = (0..32u32).flat_map(|i| (i as f32).to_le_bytes());
        Ok(bytes.skip(offset).take(len).collect())
    }
}

#[test]
fn tensors_of_a_device_are_copied_to_the_host() {
    // SAFETY: as above.
    let mut t = unsafe { Tensor::from_block(DType::Float, [4, 8].into(), Box::new(Elsewhere)) };
    assert!(t.is_sole_owner() && !t.is_unique());
    let mut part = t.view(9, [2].into()).unwrap();
    assert!(!t.is_sole_owner() && !part.is_sole_owner());
    let copy = part.on_host().unwrap();
    assert_eq!(copy.slice::<f32>().unwrap(), [9.0, 10.0]);
    drop(t);
    assert!(part.is_sole_owner());
    assert!(!copy.is_on_device() && copy.on_host().unwrap().same_value(&copy));
}

#[test]
fn the_host_cannot_read_tensors_of_a_device() {
    // SAFETY: as above.
    let t = unsafe { Tensor::from_block(DType::Float, [4, 8].into(), Box::new(Elsewhere)) };
    for mut t in [
        t.clone(),
        t.clone().with_shape([32].into()).unwrap(),
        t.view(1, [2].into()).unwrap(),
    ] {
        assert!(t.is_on_device() && t.block().is_some());
        assert_eq!(t.bytes().unwrap_err().code(), Code::Internal);
        assert_eq!(t.slice::<f32>().unwrap_err().code(), Code::Internal);
        assert_eq!(t.items::<u32>().unwrap_err().code(), Code::Internal);
        assert!(t.slice_mut::<f32>().is_err() && !t.is_unique());
        assert!(!t.same_value(&t.clone()));
    }
    assert!(!Tensor::scalar(1.0f32).is_on_device());
}

#[test]
fn derived_values_follow_their_elements() {
    let sum = |t: &Tensor| t.derived([0, 0], || t.slice::<f32>().unwrap().iter().sum::<f32>());
    let kept = |t: &Tensor| sum(t).as_deref().copied();
    let mut base = Tensor::vector(&[1.0f32; 64]).unwrap();
    assert_eq!([kept(&base), kept(&base)], [None, Some(64.0)]);
    // Clones share the value, views at other positions have their own.
    assert_eq!(kept(&base.clone()), Some(64.0));
    let view = base.view(32, Shape::from([32])).unwrap();
    assert_eq!([kept(&view), kept(&view)], [None, Some(32.0)]);
    // A writer of a shared buffer copies it; the last owner writes in place.
    let mut copy = base.clone();
    copy.slice_mut::<f32>().unwrap()[0] = 3.0;
    assert_eq!([kept(&copy), kept(&copy)], [None, Some(66.0)]);
    assert_eq!(kept(&base), Some(64.0));
    drop(view);
    base.slice_mut::<f32>().unwrap()[63] = 5.0;
    assert_eq!([kept(&base), kept(&base)], [None, Some(68.0)]);
}

#[test]
fn derived_values_are_few() {
    let base = Tensor::vector(&[1.0f32; 64]).unwrap();
    let second = |key: usize| {
        let make = || key;
        [
            base.derived([key, 0], make).is_some(),
            base.derived([key, 0], make).is_some(),
        ]
    };
    let made: Vec<[bool; 2]> = (0..5).map(second).collect();
    assert_eq!(
        made,
        [[[false, true]; 4].as_slice(), &[[false, false]]].concat()
    );
    assert_eq!(Tensor::scalar(1.0f32).derived([0, 0], || 1), None);
}
