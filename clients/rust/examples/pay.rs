//! A payment that takes effect once, however often it is requested.
//!
//!     cargo run -p landfast-client --example pay -- ORDER AMOUNT
//!
//! It uses the server that `LANDFAST_URL` names (default http://127.0.0.1:7600).

use anyhow::{Context as _, Result, ensure};
use landfast_client::Client;

const OPENING: u64 = 100;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let order = arguments.next().unwrap_or_else(|| "4711".to_owned());
    let amount: u64 = arguments
        .next()
        .as_deref()
        .unwrap_or("30")
        .parse()
        .context("AMOUNT is a number")?;

    let client = Client::from_environment()?;
    let left = client
        .transaction()
        .id(format!("pay/{order}"))
        .transact(|t| async move {
            let ann = balance(t.get("accounts/ann").await?.as_deref())?;
            let shop = balance(t.get("accounts/shop").await?.as_deref())?;
            // The body's own error aborts the transaction, and `transact` returns it unchanged.
            ensure!(ann >= amount, "ann has {ann}, which is less than {amount}");
            t.put("accounts/ann", (ann - amount).to_string()).await?;
            t.put("accounts/shop", (shop + amount).to_string()).await?;
            Ok(ann - amount)
        })
        .await?;
    match left {
        Some(left) => println!("order {order} is paid; ann has {left} left"),
        None => println!("order {order} had been paid before"),
    }
    Ok(())
}

/// The balance of an account; a new one begins with a gift.
fn balance(value: Option<&[u8]>) -> Result<u64> {
    let Some(value) = value else {
        return Ok(OPENING);
    };
    let text = std::str::from_utf8(value).context("a balance is text")?;
    text.parse().context("a balance is a number")
}
