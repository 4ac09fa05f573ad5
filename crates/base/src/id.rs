//! Dense typed ids.

/// Defines a `u32` newtype that indexes arrays of one kind of item.
///
/// ```
/// ferroflow_base::define_id!(/// A row.
///     RowId);
/// let r = RowId::new(3);
/// assert_eq!(r.index(), 3);
/// assert_eq!(format!("{r:?}"), "RowId(3)");
/// ```
#[macro_export]
macro_rules! define_id {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(u32);

        impl $name {
            /// Returns the id with this index, which must fit in 32 bits.
            #[inline]
            pub fn new(index: usize) -> Self {
                debug_assert!(index <= u32::MAX as usize);
                Self(index as u32)
            }

            /// Returns the position in an array.
            #[inline]
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}
