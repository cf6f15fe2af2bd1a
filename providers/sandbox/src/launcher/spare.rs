//! A sandbox that waits for its function: an interpreter that has started, and has imported what
//! most functions need.
//!
//! ```text
//!  interpreter   isolated completely before it is executed, like a function; reports that it is
//!                ready, and waits
//!  init          keeps its rights; informs the server; waits for the order of a function; shows
//!                that function's code in place of all code; gives up its rights; sets the limits
//!  interpreter   gets its arguments and environment, and continues as that function
//! ```
//!
//! Invariants
//! - The interpreter never has a right that a function lacks. Init does the remaining steps, before
//!   any code of the function runs.
//! - Only init sees the code of all functions. Before its function runs, the code of the others is
//!   gone. The interpreter's working folder and descriptors lie outside of it, so nothing of it
//!   remains after the unmount.
//! - A spare is adopted once, so two instances share neither a memory layout nor hash seeds.
//! - Any failure on the way ends init and the whole sandbox. The server then gets no answer, and
//!   starts an instance.

use std::{
    ffi::CString,
    io::{self, Read as _, Write as _},
    net::TcpListener,
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::net::UnixStream,
    },
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::Pid,
};

use super::{
    about, become_function, become_user, files, forked_function, give_up_rights, limits, program,
    send_listener,
};
use crate::{
    order::{ADOPTED, Order, SPARE_VARIABLE},
    system::limit_other,
};

/// Starts an interpreter, and returns when it has become the function of a second order. Errors: it
/// never will.
pub(super) fn adopted(
    spare: &mut Order,
    socket: &mut UnixStream,
    user: Option<u32>,
    is_there: &io::PipeReader,
    listener: TcpListener,
) -> io::Result<Pid> {
    let address = listener.local_addr()?.to_string();
    // All but the user, which comes last.
    give_up_rights(None, spare.isolation.is_isolated, is_there)?;
    let (mut ours, theirs) = UnixStream::pair()?;
    spare
        .launch
        .environment
        .push((SPARE_VARIABLE.into(), theirs.as_raw_fd().to_string().into()));
    let function = forked_function(|| match user.map_or(Ok(()), become_user) {
        Ok(()) => become_function(spare, &address, Some(&theirs)),
        Err(error) => error.into(),
    })?;
    drop(theirs);
    ours.read_exact(&mut [0])?;
    send_listener(socket, &listener, user)?;
    drop(listener);
    wait_for_order(socket, &ours)?;
    let order = Order::read(socket)?;
    check_fit(spare, &order)?;
    files::narrow(spare, &order)?;
    give_up_rights(user, spare.isolation.is_isolated, is_there)?;
    // As the interpreter's user: setting another user's limits needs a capability that root in a
    // container lacks.
    for (resource, most) in limits(&order) {
        limit_other(function, resource, most).map_err(about("its limits"))?;
    }
    ours.write_all(&encoded(&order, &address)?)?;
    // The end of the stream ends the message.
    drop(ours);
    socket.write_all(&[ADOPTED])?;
    Ok(function)
}

/// Waits until the server sends something or is gone. Errors: the interpreter sends something or
/// has ended.
fn wait_for_order(socket: &UnixStream, interpreter: &UnixStream) -> io::Result<()> {
    let mut polled = [
        PollFd::new(socket.as_fd(), PollFlags::POLLIN),
        PollFd::new(interpreter.as_fd(), PollFlags::POLLIN),
    ];
    loop {
        match poll(&mut polled, PollTimeout::NONE) {
            Ok(_) => break,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if polled[1].any() == Some(true) {
        return Err(io::Error::other("the interpreter has ended"));
    }
    Ok(())
}

/// Errors: the sandbox differs from the one that `order` needs.
fn check_fit(spare: &Order, order: &Order) -> io::Result<()> {
    let is_fit = order.launch.command.starts_with(&spare.launch.command)
        && order.launch.folders == spare.launch.folders
        && order.launch.runtime == spare.launch.runtime
        && order.launch.network == spare.launch.network;
    if is_fit {
        Ok(())
    } else {
        Err(io::Error::other("the spare does not fit the function"))
    }
}

/// The arguments, an empty one, and the environment, each followed by a zero byte.
fn encoded(order: &Order, address: &str) -> io::Result<Vec<u8>> {
    let (arguments, environment) = program(order, address)?;
    let all = arguments.iter().map(CString::as_bytes_with_nul);
    let all = all.chain([&b"\0"[..]]);
    let environment = environment.iter().map(CString::as_bytes_with_nul);
    Ok(all.chain(environment).flatten().copied().collect())
}
