//! A read that never blocks, whatever the peer made of the open file's flags.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Reads at most eight bytes with `RWF_NOWAIT`; `EAGAIN` where there is nothing to read.
///
/// The system call itself, not rustix's `preadv2`: Android's C library had none for long, so
/// rustix leaves it out there, while the kernel has had it all along.
pub(crate) fn read_word(from: impl AsFd) -> rustix::io::Result<usize> {
    let mut word = [0u8; 8];
    let into = libc::iovec { iov_base: word.as_mut_ptr().cast(), iov_len: word.len() };
    // Offset -1, in two halves for 32-bit kernels: as `read`, no position.
    let (low, high) = (-1 as libc::c_long, -1 as libc::c_long);
    let one: libc::c_long = 1;
    // SAFETY: `into` describes `word`; both are live locals. The descriptor is open for the
    // length of the borrow, and every argument has the width of a register.
    let read = unsafe {
        libc::syscall(
            libc::SYS_preadv2,
            libc::c_long::from(from.as_fd().as_raw_fd()),
            &raw const into,
            one,
            low,
            high,
            libc::c_long::from(libc::RWF_NOWAIT),
        )
    };
    usize::try_from(read).map_err(|_| {
        let code = std::io::Error::last_os_error().raw_os_error();
        code.map_or(Errno::IO, Errno::from_raw_os_error)
    })
}
