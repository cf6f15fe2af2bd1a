//! The working directory, and programs that a process starts.

use std::{
    ffi::{c_char, c_int, c_void},
    ptr,
};

use libc::{pid_t, size_t};
use preload_frontend::wire::{Place, Request};

use super::{hooks, open::failed, pass};
use crate::{
    client::{self, Failure},
    connection,
    route::{self, on_path},
    sys::{self, PathBuffer, Result, complain, next, syscall},
    table,
};

/// The path of a directory in the volume, without links. Errors: `ENOTDIR`.
fn directory_path(place: Place<'_>) -> Result<PathBuffer, Failure> {
    let status = client::status(place, true)?;
    if status.mode & libc::S_IFMT != libc::S_IFDIR {
        return Err(Failure::Errno(libc::ENOTDIR));
    }
    client::request(&Request::Canonical { place }, |reply| {
        let mut path = PathBuffer::new();
        path.push(reply.rest()).ok()?;
        Some(path)
    })
}

fn working_directory(to: *mut c_char, count: size_t) -> Result<*mut c_char> {
    let mut path = PathBuffer::new();
    route::absolute_cwd(&mut path)?;
    let bytes = path.as_bytes();
    let mut to = to;
    if to.is_null() {
        let room = if count == 0 { bytes.len() + 1 } else { count };
        if room <= bytes.len() {
            return Err(libc::ERANGE);
        }
        // SAFETY: as the C library does; the caller frees it.
        to = unsafe { libc::malloc(room) }.cast();
        if to.is_null() {
            return Err(libc::ENOMEM);
        }
    } else if count == 0 {
        return Err(libc::EINVAL);
    } else if count <= bytes.len() {
        return Err(libc::ERANGE);
    }
    // SAFETY: the memory has room for the path and its NUL.
    unsafe { ptr::copy_nonoverlapping(path.as_ptr(), to, bytes.len() + 1) };
    Ok(to)
}

fn canonical(path: *const c_char, to: *mut c_char) -> Result<*mut c_char> {
    let found = on_path(
        libc::AT_FDCWD,
        path,
        |place| {
            client::status(place, true)?;
            let at = connection::get().map_or(&b""[..], |start| start.at.as_bytes());
            client::request(&Request::Canonical { place }, |reply| {
                let mut path = PathBuffer::new();
                path.push(at).ok()?;
                path.push(reply.rest()).ok()?;
                Some(path)
            })
        },
        |_, path| {
            let realpath = next!(realpath: fn(*const c_char, *mut c_char) -> *mut c_char);
            let realpath = realpath.ok_or(libc::ENOSYS)?;
            let mut room = [0_u8; libc::PATH_MAX as usize];
            // SAFETY: the memory has the size that the function demands.
            let found = unsafe { realpath(path, room.as_mut_ptr().cast()) };
            if found.is_null() {
                return Err(sys::errno());
            }
            let mut path = PathBuffer::new();
            // SAFETY: the function has written a string.
            path.push(unsafe { sys::bytes(found) })?;
            Ok(path)
        },
    )?;
    let bytes = found.as_bytes().len() + 1;
    if bytes > libc::PATH_MAX as usize {
        return Err(libc::ENAMETOOLONG);
    }
    // SAFETY: a path of the caller's has `PATH_MAX` bytes; a new one belongs to the caller.
    unsafe {
        let to = if to.is_null() {
            libc::malloc(bytes).cast()
        } else {
            to
        };
        if to.is_null() {
            return Err(libc::ENOMEM);
        }
        ptr::copy_nonoverlapping(found.as_ptr(), to, bytes);
        Ok(to)
    }
}

/// Checks a program that the kernel will start, or the interpreter of a script. Errors: `EACCES` for
/// a program whose calls the library does not see. `EPERM` for one that changes the user, because
/// the dynamic linker would not preload into it.
fn check_program(path: *const c_char) -> Result<()> {
    if connection::get().is_none() {
        return Ok(());
    }
    // Scripts name scripts, as often as the kernel allows.
    let mut found = check_one(path)?;
    for _ in 0..4 {
        let Some(interpreter) = found else { break };
        found = check_one(interpreter.as_ptr())?;
    }
    Ok(())
}

/// Checks one program. Returns the interpreter that it names if it is a script.
fn check_one(path: *const c_char) -> Result<Option<PathBuffer>> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let Ok(file) = syscall!(SYS_openat, libc::AT_FDCWD, path, flags, 0) else {
        // The kernel says why, or may start it all the same.
        return Ok(None);
    };
    let mut head = [0_u8; 4_096];
    let read = syscall!(SYS_pread64, file, head.as_mut_ptr(), head.len(), 0).unwrap_or(0);
    let looked = syscall!(SYS_fstat, file, stat.as_mut_ptr());
    let _ = syscall!(SYS_close, file);
    // SAFETY: all bytes zero are valid, and else the kernel has written it.
    let stat = unsafe { stat.assume_init() };
    // SAFETY: the caller has the contract of `execve`.
    let name = unsafe { sys::bytes(path) };
    let uid = syscall!(SYS_getuid).unwrap_or_default() as u32;
    let changes_user = stat.st_mode & libc::S_ISUID != 0 && stat.st_uid != uid;
    if looked.is_ok() && changes_user {
        complain(&[
            name,
            b" runs as another user, so it cannot see the volume: run it outside",
        ]);
        return Err(libc::EPERM);
    }
    let head = &head[..read];
    let what: &[u8] = if is_static(head) {
        b" is a static program"
    } else if is_go(head) {
        b" is a Go program, which makes system calls of its own"
    } else {
        return interpreter(head);
    };
    let why = b", so it cannot see the volume: use a mount, or run it outside";
    complain(&[name, what, why]);
    // After ENOEXEC a shell would read the program as a script.
    Err(libc::EACCES)
}

/// The interpreter of a script with these first bytes.
fn interpreter(head: &[u8]) -> Result<Option<PathBuffer>> {
    let Some(line) = head.strip_prefix(b"#!") else {
        return Ok(None);
    };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t'));
    let mut path = PathBuffer::new();
    path.push(words.find(|word| !word.is_empty()).unwrap_or_default())?;
    Ok(Some(path))
}

/// Whether these first bytes have the note that Go's linker writes into each program. It makes system
/// calls without the C library, also if it is dynamic.
fn is_go(head: &[u8]) -> bool {
    let is_note =
        |bytes: &[u8]| bytes.starts_with(&[4, 0, 0, 0]) && bytes.ends_with(b"\x04\0\0\0Go\0\0");
    head.starts_with(b"\x7fELF") && head.windows(16).any(is_note)
}

/// Checks the program that a search by `PATH` finds. Errors: those of [`check_program`].
fn check_found(file: *const c_char) -> Result<()> {
    // SAFETY: the caller has the contract of `execvp`.
    let name = unsafe { sys::bytes(file) };
    if connection::get().is_none() || name.contains(&b'/') {
        return check_program(file);
    }
    // SAFETY: the name ends with a NUL.
    let path = unsafe { libc::getenv(c"PATH".as_ptr()) };
    // SAFETY: a value is a string.
    let path = if path.is_null() {
        b"/bin:/usr/bin"
    } else {
        unsafe { sys::bytes(path) }
    };
    for folder in path.split(|byte| *byte == b':') {
        let mut program = PathBuffer::new();
        program.push(folder)?;
        program.push(b"/")?;
        program.push(name)?;
        if syscall!(SYS_faccessat, libc::AT_FDCWD, program.as_ptr(), libc::X_OK).is_ok() {
            return check_program(program.as_ptr());
        }
    }
    Ok(())
}

/// Whether these first bytes are those of an ELF file without an interpreter. A file whose program
/// headers are not among them counts as dynamic.
fn is_static(head: &[u8]) -> bool {
    /// `PT_INTERP`
    const INTERPRETER: u32 = 3;
    let number = |at: usize, len: usize| {
        let bytes = head.get(at..at + len)?;
        let number = bytes
            .iter()
            .rev()
            .fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        usize::try_from(number).ok()
    };
    let is_elf = head.starts_with(b"\x7fELF\x02\x01");
    let (Some(at), Some(bytes), Some(count)) = (number(32, 8), number(54, 2), number(56, 2)) else {
        return false;
    };
    let kind = |index: usize| number(at.checked_add(index * bytes)?, 4);
    let mut kinds = (0..count).map(kind);
    is_elf && kinds.all(|kind| kind.is_some_and(|kind| kind as u32 != INTERPRETER))
}

/// The variables that a program needs, if `environment` lacks some: a longer list of variables, in a
/// mapping that the exec ends.
fn completed(environment: *const *const c_char) -> Result<*const *const c_char> {
    let Some(needed) = connection::variables() else {
        return Ok(environment);
    };
    let mut count = 0;
    let mut has = [false; 3];
    let variable = |index: usize| {
        // SAFETY: the caller has the contract of `execve`: a list that ends with null.
        let text = unsafe { (!environment.is_null()).then(|| *environment.add(index)) };
        text.filter(|text| !text.is_null())
    };
    while let Some(text) = variable(count) {
        // SAFETY: as above.
        let text = unsafe { sys::bytes(text) };
        for (has, (name, _)) in has.iter_mut().zip(needed) {
            *has |= matches!(text.strip_prefix(name), Some([b'=', ..]));
        }
        count += 1;
    }
    if has == [true; 3] {
        return Ok(environment);
    }
    let lengths = needed.map(|(name, value)| name.len() + value.len() + 2);
    let list_bytes = (count + 4) * size_of::<*const c_char>();
    let bytes = list_bytes + lengths.iter().sum::<usize>();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let base = syscall!(SYS_mmap, 0, bytes, protection, kind, sys::NO_FILE, 0)?;
    let list = base as *mut *const c_char;
    // SAFETY: the mapping has room for all variables, three more and null, and for the texts of
    // those. It is all zeros, so both end where they must.
    unsafe {
        ptr::copy_nonoverlapping(environment, list, count);
        let mut text = (base as *mut u8).add(list_bytes);
        for (has, (name, value)) in has.into_iter().zip(needed) {
            if has {
                continue;
            }
            list.add(count).write(text.cast());
            count += 1;
            for part in [name, b"=", value] {
                ptr::copy_nonoverlapping(part.as_ptr(), text, part.len());
                text = text.add(part.len());
            }
            text = text.add(1);
        }
    }
    Ok(list)
}

type Strings = *const *const c_char;

unsafe extern "C" {
    static environ: Strings;
}

hooks! {
    chdir(path: *const c_char) -> c_int {
        on_path(
            libc::AT_FDCWD,
            path,
            |place| {
                route::enter(directory_path(place)?.as_bytes())?;
                Ok(0)
            },
            |_, path| {
                let changed = syscall!(SYS_chdir, path)?;
                route::note_cwd();
                Ok(changed as c_int)
            },
        )
    }
    fchdir(fd: c_int) -> c_int {
        match table::get(fd) {
            Some(open) if open.is_directory() => {
                let path = directory_path(Place::new(open.ino(), b"."));
                route::enter(path.map_err(Failure::errno)?.as_bytes())?;
                Ok(0)
            }
            Some(_) => Err(libc::ENOTDIR),
            None => {
                let changed = syscall!(SYS_fchdir, fd)?;
                route::note_cwd();
                Ok(changed as c_int)
            }
        }
    }
    getcwd(to: *mut c_char, count: size_t) -> *mut c_char {
        if route::is_cwd_inside() {
            return working_directory(to, count);
        }
        pass!(getcwd(to => *mut c_char, count => size_t) -> *mut c_char)
    }
    __getcwd_chk(to: *mut c_char, count: size_t, bytes: size_t) -> *mut c_char {
        if route::is_cwd_inside() {
            return working_directory(to, count.min(bytes));
        }
        pass!(getcwd(to => *mut c_char, count => size_t) -> *mut c_char)
    }
    get_current_dir_name() -> *mut c_char {
        if route::is_cwd_inside() {
            return working_directory(ptr::null_mut(), 0);
        }
        pass!(get_current_dir_name() -> *mut c_char)
    }
    realpath(path: *const c_char, to: *mut c_char) -> *mut c_char {
        if route::is_inside(libc::AT_FDCWD, path) {
            return canonical(path, to);
        }
        pass!(realpath(path => *const c_char, to => *mut c_char) -> *mut c_char)
    }
    __realpath_chk(path: *const c_char, to: *mut c_char, _bytes: size_t) -> *mut c_char {
        if route::is_inside(libc::AT_FDCWD, path) {
            return canonical(path, to);
        }
        pass!(realpath(path => *const c_char, to => *mut c_char) -> *mut c_char)
    }
    canonicalize_file_name(path: *const c_char) -> *mut c_char {
        if route::is_inside(libc::AT_FDCWD, path) {
            return canonical(path, ptr::null_mut());
        }
        pass!(canonicalize_file_name(path => *const c_char) -> *mut c_char)
    }
    execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
        check_program(path)?;
        let environment = completed(environment)?;
        pass!(execve(path => *const c_char, arguments => Strings, environment => Strings) -> c_int)
    }
    execv(path: *const c_char, arguments: Strings) -> c_int {
        // SAFETY: the caller has the contract of this function.
        Ok(unsafe { execve(path, arguments, environ) })
    }
    execvp(file: *const c_char, arguments: Strings) -> c_int {
        // SAFETY: the caller has the contract of this function.
        Ok(unsafe { execvpe(file, arguments, environ) })
    }
    execvpe(file: *const c_char, arguments: Strings, environment: Strings) -> c_int {
        check_found(file)?;
        let environment = completed(environment)?;
        pass!(execvpe(file => *const c_char, arguments => Strings, environment => Strings) -> c_int)
    }
    posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void,
        attributes: *const c_void, arguments: Strings, environment: Strings) -> c_int {
        if let Err(errno) = check_program(path) {
            return Ok(errno);
        }
        let environment = completed(environment)?;
        pass!(posix_spawn(pid => *mut pid_t, path => *const c_char, actions => *const c_void,
            attributes => *const c_void, arguments => Strings, environment => Strings) -> c_int)
    }
    posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const c_void,
        attributes: *const c_void, arguments: Strings, environment: Strings) -> c_int {
        if let Err(errno) = check_found(file) {
            return Ok(errno);
        }
        let environment = completed(environment)?;
        pass!(posix_spawnp(pid => *mut pid_t, file => *const c_char, actions => *const c_void,
            attributes => *const c_void, arguments => Strings, environment => Strings) -> c_int)
    }
    vfork() -> pid_t {
        // The child of a vfork would change this process's table when it moves its descriptors.
        match next!(fork: fn() -> pid_t) {
            // SAFETY: a fork is allowed wherever a vfork is.
            Some(fork) => failed(unsafe { fork() }),
            None => Err(libc::ENOSYS),
        }
    }
}
