//! Instruction sets: which exist, which this host has, which one to use.

use crate::kernels::{self, Kernels};
use std::fmt;

/// Instruction sets with kernels of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IsaLevel {
    /// What every CPU of the build's target has.
    Portable,
    /// x86-64 with AVX2 and F16C.
    Avx2,
    /// x86-64 with AVX-512 VNNI in 256-bit registers.
    Avx512Vnni,
    /// aarch64 with the dot product instructions.
    NeonDotprod,
}

impl IsaLevel {
    /// All, the fastest last.
    pub const ALL: [IsaLevel; 4] =
        [IsaLevel::Portable, IsaLevel::Avx2, IsaLevel::Avx512Vnni, IsaLevel::NeonDotprod];

    /// Whether this host can run it.
    pub fn is_available(self) -> bool {
        self.kernels().is_some()
    }

    /// The fastest that this host can run.
    pub fn best() -> IsaLevel {
        let mut levels = IsaLevel::ALL.into_iter().rev();
        levels.find(|level| level.is_available()).unwrap_or(IsaLevel::Portable)
    }

    /// The entry points, where this host can run them.
    pub(crate) fn kernels(self) -> Option<&'static Kernels> {
        detect(self)
    }
}

#[cfg(target_arch = "x86_64")]
fn detect(level: IsaLevel) -> Option<&'static Kernels> {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
    let vnni = is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512vl");
    match level {
        IsaLevel::Portable => Some(&kernels::portable::KERNELS),
        IsaLevel::Avx2 if avx2 => Some(&kernels::avx2::KERNELS),
        IsaLevel::Avx512Vnni if avx2 && vnni => Some(&kernels::avx512::KERNELS),
        _ => None,
    }
}

#[cfg(target_arch = "aarch64")]
fn detect(level: IsaLevel) -> Option<&'static Kernels> {
    match level {
        IsaLevel::Portable => Some(&kernels::portable::KERNELS),
        IsaLevel::NeonDotprod if std::arch::is_aarch64_feature_detected!("dotprod") => {
            Some(&kernels::neon::KERNELS)
        }
        _ => None,
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn detect(level: IsaLevel) -> Option<&'static Kernels> {
    (level == IsaLevel::Portable).then_some(&kernels::portable::KERNELS)
}

impl fmt::Display for IsaLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IsaLevel::Portable => "portable",
            IsaLevel::Avx2 => "AVX2",
            IsaLevel::Avx512Vnni => "AVX-512 VNNI",
            IsaLevel::NeonDotprod => "NEON dotprod",
        })
    }
}
