//! Domains, registered memory and address handles.

use super::{Domain, Handle, Opened, PORT, given, set_errno};
use libc::{c_int, c_uint, c_void};
use linerate_verbs_sys::raw::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// # Safety
/// An open device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: our caller promises it.
    let opened = unsafe { Opened::of(context) };
    if let Err(errno) = opened.check() {
        return given::<Domain>(Err(errno)).cast();
    }
    opened.users.fetch_add(1, Ordering::Relaxed);
    let number = opened.process.new_domain();
    let base = ibv_pd {
        context,
        handle: number,
    };
    given(Ok(Box::new(Domain {
        base,
        number,
        users: AtomicUsize::new(0),
    })))
    .cast()
}

/// # Safety
/// A domain that lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(domain: *mut ibv_pd) -> c_int {
    // SAFETY: our caller promises it.
    let (opened, users) = unsafe {
        (
            Opened::of((*domain).context),
            &(*domain.cast::<Domain>()).users,
        )
    };
    if users.load(Ordering::Relaxed) > 0 {
        return libc::EBUSY;
    }
    opened.users.fetch_sub(1, Ordering::Relaxed);
    // SAFETY: it came from a box, and nobody uses it any more.
    drop(unsafe { Box::from_raw(domain.cast::<Domain>()) });
    0
}

/// # Safety
/// A domain that lives, and memory that is mapped until it is deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    domain: *mut ibv_pd,
    address: *mut c_void,
    bytes: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: our caller promises it.
    unsafe { ibv_reg_mr_iova2(domain, address, bytes, address as u64, access as c_uint) }
}

/// # Safety
/// As [`ibv_reg_mr`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    domain: *mut ibv_pd,
    address: *mut c_void,
    bytes: usize,
    named: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: our caller promises it.
    let (opened, own) = unsafe { (Opened::of((*domain).context), &*domain.cast::<Domain>()) };
    let flag =
        ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
    let writes = access & flag != 0;
    let is_writable = access & ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 != 0;
    let is_invalid = (writes && !is_writable) || named != address as u64 || bytes == 0;
    let refusal = match opened.check() {
        Err(errno) => Some(errno),
        Ok(()) if is_invalid => Some(libc::EINVAL),
        Ok(()) => (!is_mapped(address as usize, bytes)).then_some(libc::EFAULT),
    };
    let key = match refusal {
        Some(errno) => Err(errno),
        None => (opened.process)
            .register(own.number, address as u64, bytes as u64, access)
            .ok_or(libc::ENOMEM),
    };
    given(key.map(|key| {
        own.users.fetch_add(1, Ordering::Relaxed);
        let context = opened.context();
        Box::new(ibv_mr {
            context,
            pd: domain,
            addr: address,
            length: bytes,
            handle: key,
            lkey: key,
            rkey: key,
        })
    }))
    .cast()
}

/// Whether the first and the last page of a range are mapped.
fn is_mapped(address: usize, bytes: usize) -> bool {
    let page = |at: usize| (at & !4095) as *mut c_void;
    let mut state = 0u8;
    [address, address + bytes - 1].iter().all(|&at| {
        // SAFETY: asks for one page, and the answer's byte is writable.
        unsafe { libc::mincore(page(at), 4096, &mut state) == 0 }
    })
}

/// # Safety
/// None of the arguments is used: no device here can register device memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    _: *mut ibv_pd,
    _: u64,
    _: usize,
    _: u64,
    _: c_int,
    _: c_int,
) -> *mut ibv_mr {
    set_errno(libc::EOPNOTSUPP);
    std::ptr::null_mut()
}

/// # Safety
/// Registered memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(region: *mut ibv_mr) -> c_int {
    // SAFETY: it came from a box, and nobody uses it any more.
    let region = unsafe { Box::from_raw(region) };
    // SAFETY: the domain and the device live as long as what was made of them.
    let (opened, domain) = unsafe { (Opened::of(region.context), &*region.pd.cast::<Domain>()) };
    opened.process.deregister(region.lkey);
    domain.users.fetch_sub(1, Ordering::Relaxed);
    0
}

/// # Safety
/// A domain that lives, and a structure that is complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(
    domain: *mut ibv_pd,
    wanted: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    // SAFETY: our caller promises it.
    let (opened, own, wanted) = unsafe {
        (
            Opened::of((*domain).context),
            &*domain.cast::<Domain>(),
            &*wanted,
        )
    };
    let checked = match wanted.is_global == 0 || wanted.port_num != PORT {
        true => Err(libc::EINVAL),
        false => opened.check(),
    };
    if let Err(errno) = checked {
        return given::<Handle>(Err(errno)).cast();
    }
    own.users.fetch_add(1, Ordering::Relaxed);
    let base = ibv_ah {
        context: own.base.context,
        pd: domain,
        handle: 0,
    };
    given(Ok(Box::new(Handle {
        base,
        gid: wanted.grh.dgid,
    })))
    .cast()
}

/// # Safety
/// A handle that lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(handle: *mut ibv_ah) -> c_int {
    // SAFETY: it came from a box, and nobody uses it any more; the domain lives longer.
    unsafe {
        let handle = Box::from_raw(handle.cast::<Handle>());
        (*handle.base.pd.cast::<Domain>())
            .users
            .fetch_sub(1, Ordering::Relaxed);
    }
    0
}
