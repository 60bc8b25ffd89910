// SPDX-License-Identifier: GPL-2.0-or-later
//! Maps: tables that a program shares with processes. Those here are hash tables with keys and values of fixed sizes.

use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;

use super::{ById, GetInfo, OBJ_GET_INFO_BY_FD, address, bpf, owned, place, raw};

const MAP_CREATE: i32 = 0;
const LOOKUP: i32 = 1;
const UPDATE: i32 = 2;
const DELETE: i32 = 3;
const NEXT_KEY: i32 = 4;
const GET_FD_BY_ID: i32 = 14;
/// `BPF_NOEXIST`.
const NO_EXIST: u64 = 1;

/// `BPF_MAP_TYPE_HASH`.
const HASH: u32 = 1;
/// `BPF_F_NO_PREALLOC`: an entry takes memory only when it is made.
const NO_PREALLOC: u32 = 1;

/// What keys and values are made of: any bytes are one, and there are no others in it.
///
/// # Safety
///
/// The type has no padding, and each pattern of bits is a value of it.
pub unsafe trait Plain: Copy + Default {}

// SAFETY: it is a number.
unsafe impl Plain for u32 {}
// SAFETY: it is a number.
unsafe impl Plain for u64 {}
// SAFETY: these are numbers, one behind the other.
unsafe impl<const N: usize> Plain for [u64; N] where [u64; N]: Default {}

#[repr(C)]
#[derive(Default)]
struct Create {
    kind: u32,
    key_size: u32,
    value_size: u32,
    most: u32,
    flags: u32,
    inner: u32,
    node: u32,
    name: [u8; 16],
    device: u32,
}

#[repr(C)]
#[derive(Default)]
struct Element {
    map: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The beginning of `struct bpf_map_info`, which a kernel of any age has.
#[repr(C)]
#[derive(Debug, Default)]
struct MapInfo {
    kind: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    most: u32,
    flags: u32,
    name: [u8; 16],
}

/// A hash table in the kernel.
#[derive(Debug)]
pub struct BpfMap {
    fd: OwnedFd,
    /// The kernel's number of it.
    pub id: u32,
    /// Its name, and zeros behind it.
    name: [u8; 16],
    sizes: (usize, usize),
}

impl BpfMap {
    /// Makes a table with keys and values of these types, for at most so many entries. The name has at most 15 bytes.
    pub fn create<K: Plain, V: Plain>(name: &str, most: u32) -> Result<Self, Errno> {
        let size = |size: usize| u32::try_from(size).map_err(|_| Errno::E2BIG);
        let mut argument = Create {
            kind: HASH,
            key_size: size(size_of::<K>())?,
            value_size: size(size_of::<V>())?,
            most,
            flags: NO_PREALLOC,
            ..Create::default()
        };
        argument.name.iter_mut().take(15).zip(name.bytes()).for_each(|(to, from)| *to = from);
        // SAFETY: the argument points to nothing.
        let (fd, _) = unsafe { bpf(MAP_CREATE, argument) }?;
        // SAFETY: the kernel has just made it.
        Self::from_fd(unsafe { owned(fd) }?)
    }

    /// Opens the map with this number.
    pub fn by_id(id: u32) -> Result<Self, Errno> {
        // SAFETY: the argument points to nothing.
        let (fd, _) = unsafe { bpf(GET_FD_BY_ID, ById { id, _pad: 0 }) }?;
        // SAFETY: the kernel has just made it.
        Self::from_fd(unsafe { owned(fd) }?)
    }

    fn from_fd(fd: OwnedFd) -> Result<Self, Errno> {
        let mut info = [MapInfo::default()];
        let length = u32::try_from(size_of_val(&info)).unwrap_or_default();
        let argument = GetInfo { program: raw(fd.as_fd()), length, info: place(&mut info) };
        // SAFETY: `info` lives, and is as long as is said.
        unsafe { bpf(OBJ_GET_INFO_BY_FD, argument) }?;
        let [info] = info;
        // An entry of another kind of map may be longer than its value: one for each CPU.
        let size = |size: u32| if info.kind == HASH { usize::try_from(size).unwrap_or_default() } else { 0 };
        Ok(Self { fd, id: info.id, name: info.name, sizes: (size(info.key_size), size(info.value_size)) })
    }

    /// Whether it is a hash table of this name, with keys and values of these types.
    pub fn is<K: Plain, V: Plain>(&self, name: &str) -> bool {
        self.sizes == (size_of::<K>(), size_of::<V>()) && self.name.starts_with(name.as_bytes())
    }

    /// Its descriptor, for instructions that name the map.
    pub fn number(&self) -> i32 {
        raw(self.fd.as_fd()).cast_signed()
    }

    /// The value of a key; `None`: it has none.
    pub fn get<K: Plain, V: Plain>(&self, key: K) -> Result<Option<V>, Errno> {
        let (key, mut value) = ([key], [V::default()]);
        // SAFETY: key and value live, and are as long as is said.
        match unsafe { self.element(LOOKUP, (address(&key), size_of::<K>()), (place(&mut value), size_of::<V>()), 0) } {
            Ok(()) => {
                let [value] = value;
                Ok(Some(value))
            }
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Sets the value of a key.
    pub fn set<K: Plain, V: Plain>(&self, key: K, value: V) -> Result<(), Errno> {
        self.update(key, value, 0)
    }

    /// Sets the value of a key that has none. If it has one, that stays.
    pub fn add<K: Plain, V: Plain>(&self, key: K, value: V) -> Result<(), Errno> {
        match self.update(key, value, NO_EXIST) {
            Err(Errno::EEXIST) => Ok(()),
            done => done,
        }
    }

    fn update<K: Plain, V: Plain>(&self, key: K, value: V, flags: u64) -> Result<(), Errno> {
        let (key, value) = ([key], [value]);
        // SAFETY: key and value live, and are as long as is said. The kernel only reads them.
        unsafe { self.element(UPDATE, (address(&key), size_of::<K>()), (address(&value), size_of::<V>()), flags) }
    }

    /// A command about one entry. `EBADF`: the map's keys or values have another length.
    ///
    /// # Safety
    ///
    /// The addresses are of so many bytes, and the value can be written to where the command does.
    // Once in the shared object, for all types.
    #[inline(never)]
    unsafe fn element(&self, command: i32, key: (u64, usize), value: (u64, usize), flags: u64) -> Result<(), Errno> {
        if self.sizes != (key.1, value.1) {
            return Err(Errno::EBADF);
        }
        let argument = Element { map: raw(self.fd.as_fd()), key: key.0, value: value.0, flags, _pad: 0 };
        // SAFETY: by the caller's word they live, and are as long as the map's.
        unsafe { bpf(command, argument) }.map(drop)
    }

    /// Removes a key. One that is not there is no error.
    pub fn remove<K: Plain>(&self, key: K) -> Result<(), Errno> {
        if self.sizes.0 != size_of::<K>() {
            return Err(Errno::EBADF);
        }
        let key = [key];
        let argument = Element { map: raw(self.fd.as_fd()), key: address(&key), ..Element::default() };
        // SAFETY: the key lives, and is as long as the map's. The kernel only reads it.
        match unsafe { bpf(DELETE, argument) } {
            Ok(_) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Its keys, at most so many. While others remove entries, some may be missing or twice.
    pub fn keys<K: Plain>(&self, most: usize) -> Result<Vec<K>, Errno> {
        if self.sizes.0 != size_of::<K>() {
            return Err(Errno::EBADF);
        }
        let mut keys: Vec<K> = Vec::new();
        let mut before = Vec::new();
        while keys.len() < most {
            let mut next = [K::default()];
            // Without a key before it, the kernel gives the first one.
            let key = if before.is_empty() { 0 } else { address(&before) };
            let argument = Element { map: raw(self.fd.as_fd()), key, value: place(&mut next), ..Element::default() };
            // SAFETY: both keys live, and are as long as the map's.
            match unsafe { bpf(NEXT_KEY, argument) } {
                Ok(_) => {
                    let [next] = next;
                    keys.push(next);
                    before = vec![next];
                }
                Err(Errno::ENOENT) => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(keys)
    }
}

const _: () = assert!(offset_of!(Create, name) == 28 && size_of::<Create>() == 48);
const _: () = assert!(offset_of!(Element, flags) == 24 && size_of::<MapInfo>() == 40);
