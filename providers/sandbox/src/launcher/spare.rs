//! A sandbox that waits for its function: an interpreter that has started, and has imported what most functions need.
//!
//! ```text
//!  interpreter   isolated for good before it is executed, as a function is; says that it is ready, and waits
//!  init          keeps its rights; tells the server; waits for the order of a function
//!                shows its code in place of all code, gives up its rights, sets its limits
//!  interpreter   is told its arguments and environment, and goes on as that function
//! ```
//!
//! Invariants
//! - The interpreter never has a right that a function has not. What is still to be done for one is init's, and is done before anything
//!   of that function runs.
//! - The code of all functions is there for init alone, and but for that of its function gone before anything of that runs. The interpreter's
//!   working folder and its descriptors are outside of it, so that nothing of it is left when its mount has gone.
//! - It is adopted once, so two instances have nothing in common: neither the layout of memory nor the seeds of hashes.
//! - Whatever fails on the way ends init, and with it all that is in there: then the server has heard nothing, and starts an instance.

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
    about, become_function, become_user, files, forked_function, give_up_rights, limits, said,
    send_listener,
};
use crate::{
    command::SPARE_VARIABLE,
    process::{ADOPTED, Order},
    system::limit_other,
};

/// Has an interpreter started, and waits until it is the function of a second order. Errors: it never will be.
pub(super) fn adopted(
    spare: &mut Order,
    socket: &mut UnixStream,
    user: Option<u32>,
    is_there: &io::PipeReader,
    listener: TcpListener,
) -> io::Result<Pid> {
    let address = listener.local_addr()?.to_string();
    // All but the user, who comes last.
    give_up_rights(None, spare.is_isolated, is_there)?;
    let (mut ours, theirs) = UnixStream::pair()?;
    spare
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
    give_up_rights(user, spare.is_isolated, is_there)?;
    // As the interpreter's user: another's limits are for those with a right to that, which root in a container has not.
    for (resource, most) in limits(&order) {
        limit_other(function, resource, most).map_err(about("its limits"))?;
    }
    ours.write_all(&told(&order, &address)?)?;
    // What ends there is all that it is told.
    drop(ours);
    socket.write_all(&[ADOPTED])?;
    Ok(function)
}

/// Ends when the server says something, or has gone. Errors: the interpreter says something, or has ended.
fn wait_for_order(socket: &UnixStream, interpreter: &UnixStream) -> io::Result<()> {
    let mut asked = [
        PollFd::new(socket.as_fd(), PollFlags::POLLIN),
        PollFd::new(interpreter.as_fd(), PollFlags::POLLIN),
    ];
    loop {
        match poll(&mut asked, PollTimeout::NONE) {
            Ok(_) => break,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if asked[1].any() == Some(true) {
        return Err(io::Error::other("the interpreter has ended"));
    }
    Ok(())
}

/// Errors: what was built is not what a function with this order has.
fn check_fit(spare: &Order, order: &Order) -> io::Result<()> {
    let is_fit = order.command.starts_with(&spare.command)
        && order.folders == spare.folders
        && order.runtime == spare.runtime
        && order.network == spare.network;
    if is_fit {
        Ok(())
    } else {
        Err(io::Error::other("the spare is one for other functions"))
    }
}

/// The arguments, an empty one, and the environment, each with a zero byte behind it.
fn told(order: &Order, address: &str) -> io::Result<Vec<u8>> {
    let said = said(order, address)?;
    let (arguments, environment) = (said.arguments.iter(), said.environment.iter());
    let all = arguments
        .map(CString::as_bytes_with_nul)
        .chain([&b"\0"[..]]);
    Ok(all
        .chain(environment.map(CString::as_bytes_with_nul))
        .flatten()
        .copied()
        .collect())
}
