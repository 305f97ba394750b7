//! What an instruction set must supply. The kernels are written once over this trait, so an
//! instruction set cannot disagree with another about order or rounding, only about speed.

/// Rows of a weight panel, lanes of a vector.
pub(crate) const WIDTH: usize = 8;

/// A piece of a kernel that is compiled as a function of its own, see [`Simd::outline`].
pub(crate) trait Piece {
    /// Does its work.
    ///
    /// # Safety
    ///
    /// As the kernel it is a piece of.
    unsafe fn run<S: Simd>(self);
}

/// Eight 32-bit lanes.
///
/// # Safety
///
/// Every method needs the instruction set of its implementor (the table of kernels is handed
/// out by [`IsaLevel::kernels`](crate::IsaLevel) only where the host has it) and pointers
/// valid for the lanes it names. All are `#[inline(always)]`, so that they take on the
/// features of the kernel that calls them.
pub(crate) trait Simd: Copy {
    /// Eight floats.
    type F: Copy;
    /// Eight 32-bit integers; also 32 bytes, or 16 pairs of `i16`.
    type I: Copy;

    /// Runs a piece in a function of its own with this instruction set's features. Kernels
    /// with many variants are cut into pieces, for the compiler takes more than
    /// proportionally long over one large function.
    unsafe fn outline<P: Piece>(piece: P);

    /// Asks for the cache line at any address, valid or not.
    unsafe fn prefetch(p: *const u8);

    /// Loads eight floats.
    unsafe fn load(p: *const f32) -> Self::F;
    /// Stores eight floats.
    unsafe fn store(p: *mut f32, v: Self::F);
    /// As [`Simd::store`], past the caches where the instruction set can: for what nobody reads soon.
    /// The address is a multiple of 32; [`super::settle`] comes before another thread reads it.
    #[inline(always)]
    unsafe fn stream(p: *mut f32, v: Self::F) {
        // SAFETY: the caller's contract, passed on.
        unsafe { Self::store(p, v) }
    }
    /// Eight times the same float.
    unsafe fn splat(v: f32) -> Self::F;
    /// Sum.
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    /// Difference.
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    /// Product. Never contracted with an addition.
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// Quotient.
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// The smaller; `b` where one is no number.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// The larger; `b` where one is no number.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// Sign turned.
    unsafe fn neg(a: Self::F) -> Self::F;
    /// Magnitude.
    unsafe fn abs(a: Self::F) -> Self::F;
    /// Largest integer not above; arguments lie within `i32`.
    unsafe fn floor(a: Self::F) -> Self::F;
    /// Folds in halves: 4 with 4, 2 with 2, 1 with 1.
    unsafe fn fold(a: Self::F) -> f32;
    /// Eight IEEE halves.
    unsafe fn load_f16(p: *const u16) -> Self::F;
    /// Rounds to eight IEEE halves, nearest even.
    unsafe fn store_f16(p: *mut u16, v: Self::F);

    /// Loads eight integers.
    unsafe fn load_i(p: *const i32) -> Self::I;
    /// Stores eight integers.
    unsafe fn store_i(p: *mut i32, v: Self::I);
    /// Eight times the same integer.
    unsafe fn splat_i(v: i32) -> Self::I;
    /// Bits of both.
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    /// Bits of either.
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    /// Bits of one only.
    unsafe fn xor(a: Self::I, b: Self::I) -> Self::I;
    /// Each lane shifted left.
    unsafe fn shl<const N: i32>(a: Self::I) -> Self::I;
    /// Each lane shifted right, zeros in.
    unsafe fn shr<const N: i32>(a: Self::I) -> Self::I;
    /// Sum of lanes, wrapping.
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I;
    /// Difference of lanes, wrapping.
    unsafe fn sub_i(a: Self::I, b: Self::I) -> Self::I;
    /// Sum of all lanes.
    unsafe fn total(a: Self::I) -> i32;
    /// To float, nearest even.
    unsafe fn to_float(a: Self::I) -> Self::F;
    /// Nearest even integer of values below 2^22 in magnitude; 0 where no number.
    unsafe fn round(a: Self::F) -> Self::I;
    /// The same bits as floats.
    unsafe fn bits(a: Self::I) -> Self::F;
    /// The lanes of four vectors, each within a signed byte, as 32 bytes in order.
    unsafe fn store_bytes(p: *mut i8, v: [Self::I; 4]);
    /// The low 16 bits of each lane, an IEEE half, as a float.
    unsafe fn low_f16(a: Self::I) -> Self::F;
    /// Bytes `A` and `B` of each lane, sign-extended, as its two `i16`.
    unsafe fn bytes_as_pair<const A: u32, const B: u32>(v: Self::I) -> Self::I;
    /// Each lane's two `i16` products added: `a.lo * b.lo + a.hi * b.hi`.
    unsafe fn madd(a: Self::I, b: Self::I) -> Self::I;

    /// The 4 bytes at `rows[lane] + at`, a lane a row.
    unsafe fn dwords(rows: &[*const u8; WIDTH], at: usize) -> Self::I;
    /// The 16 bytes at `rows[lane] + at` as four vectors, a lane a row.
    unsafe fn transpose(rows: &[*const u8; WIDTH], at: usize) -> [Self::I; 4];

    /// As [`Simd::dot`], with `scale` times what `starts` hold added: of values that are stored from 0
    /// on though they are not, the offset times the sum of `x`, taken off beforehand.
    ///
    /// `starts[c]` are two `i16`, to which the products of the first two of every four values, and
    /// of the others, are added; what either ends with fits in 16 bits. `scale` is all 1 where not
    /// `SCALED`.
    #[inline(always)]
    unsafe fn dot_from<const DWORDS: usize, const BITS: u32, const SCALED: bool, const C: usize>(
        w: impl Vectors<Self>,
        x: &[*const i8; C],
        starts: &[*const i32; C],
        scale: Self::I,
    ) -> [Self::I; C] {
        // SAFETY: the caller's contract, passed on.
        unsafe {
            let mut out = Self::dot::<DWORDS, BITS, SCALED, C>(w, x, scale);
            for c in 0..C {
                out[c] = Self::add_i(out[c], Self::madd(Self::splat_i(*starts[c]), scale));
            }
            out
        }
    }

    /// For each of `C` columns, `scale * sum(w * x)` over `4 * DWORDS` values of eight rows.
    ///
    /// `w` holds `DWORDS` vectors, each the four unsigned bytes of below `2^BITS` (4, 5
    /// or 6) of the eight rows; `x[c]` points to `4 * DWORDS` bytes from -127 to 127. `scale`
    /// holds each row's factor twice, as two `i16`; all 1 where not `SCALED`.
    unsafe fn dot<const DWORDS: usize, const BITS: u32, const SCALED: bool, const C: usize>(
        w: impl Vectors<Self>,
        x: &[*const i8; C],
        scale: Self::I,
    ) -> [Self::I; C];
}

/// Vectors of weights that a kernel takes one by one, from memory or unpacked on the way.
pub(crate) trait Vectors<S: Simd>: Copy {
    /// Vector `j`.
    unsafe fn at(self, j: usize) -> S::I;
}

/// Vectors that lie in memory one after the other.
#[derive(Clone, Copy)]
pub(crate) struct Stored(pub(crate) *const u8);

impl<S: Simd> Vectors<S> for Stored {
    #[inline(always)]
    unsafe fn at(self, j: usize) -> S::I {
        // SAFETY: the maker's pointer has the vectors that the kernel asks for.
        unsafe { S::load_i(self.0.add(32 * j).cast()) }
    }
}
