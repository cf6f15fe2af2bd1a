//! The Rust function of the tests: it responds, fails, panics, and reports its context.

use lambda_runtime::{Error, LambdaEvent, run, service_fn};
use serde_json::{Value, json};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    run(service_fn(handle)).await
}

async fn handle(event: LambdaEvent<Value>) -> Result<Value, Error> {
    let LambdaEvent { payload, context } = event;
    match payload["what"].as_str() {
        Some("fail") => Err("on purpose".into()),
        Some("panic") => panic!("on purpose"),
        _ => {
            println!("printed {}", payload["n"]);
            Ok(json!({
            "event": payload,
            "id": context.request_id,
            "name": context.env_config.function_name,
            "memory": context.env_config.memory,
            "process": std::process::id(),
            }))
        }
    }
}
