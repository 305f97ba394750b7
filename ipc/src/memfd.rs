//! The memory of a region: a memfd made by the daemon and sealed before anyone
//! else has it.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create};
use rustix::io::{Errno, pwrite};

use crate::layout::{Direction, header, region_bytes};
use crate::region::{OwnRegion, Region};

/// The daemon's side of one new connection's memory. The two descriptors go to
/// the client; the daemon keeps the mappings only.
#[derive(Debug)]
pub(crate) struct Regions {
    pub(crate) request: Region,
    pub(crate) response: OwnRegion,
    pub(crate) request_fd: OwnedFd,
    pub(crate) response_fd: OwnedFd,
}

/// Seals that every region carries before it is shared.
pub(crate) const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

impl Regions {
    /// Makes both regions; capacities were validated by the listener's settings.
    /// Pages are committed as they are first used.
    pub(crate) fn create(request: usize, response: usize) -> rustix::io::Result<Regions> {
        let request_fd = unsealed(Direction::Request, request)?;
        fcntl_add_seals(&request_fd, SIZE_SEALS | SealFlags::SEAL)?;
        let response_fd = unsealed(Direction::Response, response)?;
        // The daemon's writable mapping must exist before FUTURE_WRITE forbids
        // new ones. From here on nobody, the daemon included, can write, map
        // writable or punch holes except through that mapping.
        let response = OwnRegion::map(&response_fd, region_bytes(response))?;
        fcntl_add_seals(&response_fd, SIZE_SEALS | SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok(Regions {
            request: Region::map(&request_fd, region_bytes(request))?,
            response,
            request_fd,
            response_fd,
        })
    }
}

fn unsealed(direction: Direction, capacity: usize) -> rustix::io::Result<OwnedFd> {
    let name = match direction {
        Direction::Request => "tandem-request",
        Direction::Response => "tandem-response",
    };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3 the flag is unknown.
        Err(Errno::INVAL) => memfd_create(name, flags)?,
        other => other?,
    };
    ftruncate(&fd, region_bytes(capacity) as u64)?;
    let words = header(direction, capacity);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let written = pwrite(&fd, &bytes, 0)?;
    if written != bytes.len() {
        return Err(Errno::NOSPC);
    }
    Ok(fd)
}

/// Whether `fd` can never change its size again.
pub(crate) fn size_is_sealed(fd: impl AsFd) -> rustix::io::Result<bool> {
    Ok(fcntl_get_seals(fd)?.contains(SIZE_SEALS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{ROOM_AT, WRITE_AT};
    use crate::words::{Words, WordsMut};
    use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open};
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect, munmap};
    use std::os::fd::AsRawFd;
    use std::sync::atomic::Ordering;

    const CAPACITY: usize = 4096;

    fn reopened(fd: &OwnedFd) -> OwnedFd {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    fn map_result(fd: &OwnedFd, prot: ProtFlags) -> rustix::io::Result<*mut core::ffi::c_void> {
        // SAFETY: a null hint replaces no memory; the callers unmap.
        unsafe { mmap(std::ptr::null_mut(), 4096, prot, MapFlags::SHARED, fd, 0) }
    }

    #[test]
    fn neither_region_can_shrink_grow_or_be_unsealed() {
        let regions = Regions::create(CAPACITY, CAPACITY).unwrap();
        for fd in [&regions.request_fd, &regions.response_fd] {
            for fd in [fd.try_clone().unwrap(), reopened(fd)] {
                assert_eq!(ftruncate(&fd, 0), Err(Errno::PERM));
                assert_eq!(ftruncate(&fd, 1 << 20), Err(Errno::PERM));
                assert_eq!(fcntl_add_seals(&fd, SealFlags::WRITE), Err(Errno::PERM));
                assert!(size_is_sealed(&fd).unwrap());
            }
        }
    }

    #[test]
    fn the_response_region_refuses_every_way_to_write() {
        let regions = Regions::create(CAPACITY, CAPACITY).unwrap();
        for fd in [regions.response_fd.try_clone().unwrap(), reopened(&regions.response_fd)] {
            assert_eq!(pwrite(&fd, b"x", 0), Err(Errno::PERM));
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            assert_eq!(fallocate(&fd, punch, 0, 4096), Err(Errno::PERM));
            assert_eq!(map_result(&fd, ProtFlags::READ | ProtFlags::WRITE).unwrap_err(), Errno::PERM);
            let read_only = map_result(&fd, ProtFlags::READ).unwrap();
            // SAFETY: the page was mapped on the line above and is unmapped
            // below; nothing refers to it.
            unsafe {
                assert_eq!(
                    mprotect(read_only, 4096, MprotectFlags::READ | MprotectFlags::WRITE),
                    Err(Errno::ACCESS)
                );
                munmap(read_only, 4096).unwrap();
            }
        }
        regions.response.store(WRITE_AT, 8, Ordering::Release);
        let client = Region::map(&regions.response_fd, region_bytes(CAPACITY)).unwrap();
        assert_eq!(client.load(WRITE_AT, Ordering::Acquire), 8);
    }

    #[test]
    fn a_hole_in_the_request_region_reads_as_zeros() {
        let regions = Regions::create(CAPACITY, CAPACITY).unwrap();
        let client = OwnRegion::map(&regions.request_fd, region_bytes(CAPACITY)).unwrap();
        client.store(ROOM_AT, 7, Ordering::Relaxed);
        assert_eq!(regions.request.load(ROOM_AT, Ordering::Relaxed), 7);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&regions.request_fd, punch, 0, region_bytes(CAPACITY) as u64).unwrap();
        assert_eq!(regions.request.load(ROOM_AT, Ordering::Relaxed), 0);
    }
}
