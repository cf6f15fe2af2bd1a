//! A program that can be its own launcher, as the real one is; and a server that a test may end, or
//! start with fewer rights.
//!
//! ```text
//!  sandbox-launcher   the launcher
//!  measures           says what can be enforced here
//!  call FOLDER        runs one function, with what can be, and prints its answer
//!  spare FOLDER       runs one with what can be, so that a spare waits, and waits to be ended
//!  look FOLDER        runs one the ordinary way and then by a spare, and prints what each saw of its isolation
//!  hold FOLDER        runs one without anything that is enforced, prints its answer, and waits to be ended
//! ```

// Why: it is a program of its own.
#![allow(clippy::disallowed_methods, clippy::print_stdout)]

mod world;

use std::{env, path::Path, process::ExitCode};

use ports::Runtime as _;
use sandbox::{
    launcher::{LAUNCHER_ARGUMENT, launcher_main},
    process::Enforcement,
};

use world::World;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments
        .first()
        .is_some_and(|first| first == LAUNCHER_ARGUMENT)
    {
        launcher_main();
    }
    let program = env::current_exe().expect("its own path");
    match arguments
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        ["measures"] => {
            let enforcement = Enforcement::probe(&program);
            for measure in enforcement.measures() {
                println!(
                    "{}: {}",
                    measure.what,
                    measure.lacks.as_deref().unwrap_or("enforced")
                );
            }
            enforcement.remove();
        }
        ["call", folder] => serve(folder.as_ref(), &program, Enforcement::probe, false),
        ["hold", folder] => serve(folder.as_ref(), &program, |_| Enforcement::nothing(), true),
        ["spare", folder] => look(folder.as_ref(), &program, true),
        ["look", folder] => look(folder.as_ref(), &program, false),
        _ => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}

fn look(folder: &Path, program: &Path, stays: bool) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let world = World::beside(folder, program, Enforcement::probe);
        let function = world.function("looks", world::LOOK, |_| {}).await;
        println!("{}", world.said(&function, "{}").await);
        world.spare().await;
        if stays {
            println!("a spare waits");
            std::future::pending::<()>().await;
        }
        world.sandbox.retire("looks");
        println!("{}", world.said(&function, "{}").await);
        println!("adopted {}", world.sandbox.figures().adopted);
        world.close().await;
    });
}

fn serve(folder: &Path, program: &Path, enforcement: fn(&Path) -> Enforcement, stays: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let world = World::beside(folder, program, enforcement);
        let function = world.function("one", world::CODE, |_| {}).await;
        let ran = world.call(&function, r#"{"do": "fork"}"#).await;
        match ran.result {
            Ok(answer) => println!("{}", String::from_utf8_lossy(&answer)),
            Err(error) => println!("failed: {}", String::from_utf8_lossy(&error.payload)),
        }
        if stays {
            std::future::pending::<()>().await;
        }
        world.close().await;
    });
}
