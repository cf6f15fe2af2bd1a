"""TPC-C on SQLite, one database file for each warehouse, with the standard library alone.

Each transaction opens its database anew, as a function would. A transaction stays in its home
warehouse; remote items and payments are left out. `check` verifies the consistency conditions 1 to 4
of TPC-C, SQLite's own check, and that each acknowledged order exists.

With --function, a client calls a function over HTTP for each transaction. The function is `handler`.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import random
import sqlite3
import time
import urllib.parse

DISTRICTS = 10
SCHEMA = """
create table warehouse (w_id integer primary key, w_name text, w_tax real, w_ytd real);
create table district (d_id integer primary key, d_name text, d_tax real, d_ytd real, d_next_o_id integer);
create table customer (c_d_id integer, c_id integer, c_last text, c_credit text, c_discount real, c_balance real,
  c_ytd_payment real, c_payment_cnt integer, c_delivery_cnt integer, c_data text, primary key (c_d_id, c_id)) without rowid;
create index customer_last on customer (c_d_id, c_last);
create table history (h_d_id integer, h_c_id integer, h_date real, h_amount real, h_data text);
create table orders (o_d_id integer, o_id integer, o_c_id integer, o_entry_d real, o_carrier_id integer, o_ol_cnt integer,
  primary key (o_d_id, o_id)) without rowid;
create index orders_customer on orders (o_d_id, o_c_id, o_id);
create table new_order (no_d_id integer, no_o_id integer, primary key (no_d_id, no_o_id)) without rowid;
create table order_line (ol_d_id integer, ol_o_id integer, ol_number integer, ol_i_id integer, ol_delivery_d real,
  ol_quantity integer, ol_amount real, ol_dist_info text, primary key (ol_d_id, ol_o_id, ol_number)) without rowid;
create table item (i_id integer primary key, i_name text, i_price real, i_data text);
create table stock (s_i_id integer primary key, s_quantity integer, s_dist text, s_ytd integer, s_order_cnt integer, s_data text);
"""
SYLLABLES = "BAR OUGHT ABLE PRI PRES ESE ANTI CALLY ATION EING".split()


class Rollback(Exception):
    """One new order of a hundred names an item that does not exist."""


def last_name(number):
    return SYLLABLES[number // 100 % 10] + SYLLABLES[number // 10 % 10] + SYLLABLES[number % 10]


def path_of(directory, warehouse):
    return os.path.join(directory, f"warehouse-{warehouse}.db")


def connect(arguments, directory, warehouse):
    connection = sqlite3.connect(path_of(directory, warehouse), timeout=arguments.timeout, isolation_level=None)
    connection.execute(f"pragma journal_mode = {arguments.journal}")
    connection.execute(f"pragma synchronous = {arguments.sync}")
    return connection


def load(arguments):
    items, customers = int(100_000 * arguments.scale), int(3000 * arguments.scale)
    for warehouse in range(arguments.warehouses):
        generator = random.Random(warehouse)
        text = lambda length: "".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=length))
        connection = sqlite3.connect(path_of(arguments.directories[0], warehouse), isolation_level=None)
        connection.execute("pragma journal_mode = off")
        connection.execute("pragma synchronous = off")
        connection.execute("begin")
        for statement in SCHEMA.split(";"):
            connection.execute(statement)
        insert = lambda table, rows: connection.executemany(
            f"insert into {table} values ({','.join('?' * len(rows[0]))})", rows)
        insert("warehouse", [(warehouse, text(8), generator.random() / 5, 30_000.0 * DISTRICTS)])
        insert("item", [(i, text(16), generator.randint(100, 10_000) / 100, text(40)) for i in range(items)])
        insert("stock", [(i, generator.randint(10, 100), text(24), 0, 0, text(40)) for i in range(items)])
        for d in range(DISTRICTS):
            insert("district", [(d, text(8), generator.random() / 5, 30_000.0, customers)])
            insert("customer", [(d, c, last_name(c % 1000), "GC", generator.random() / 2, -10.0, 10.0, 1, 0, text(300))
                                for c in range(customers)])
            undelivered = customers * 7 // 10
            for o, c in enumerate(generator.sample(range(customers), customers)):
                lines = generator.randint(5, 15)
                delivered = o < undelivered
                insert("orders", [(d, o, c, 0.0, generator.randint(1, 10) if delivered else None, lines)])
                insert("order_line", [(d, o, n, generator.randrange(items), 0.0 if delivered else None, 5, 0.0, text(24))
                                      for n in range(lines)])
                if not delivered:
                    insert("new_order", [(d, o)])
        connection.execute("commit")
        connection.close()


def new_order(db, generator, items, customers):
    d, c = generator.randrange(DISTRICTS), generator.randrange(customers)
    (tax,) = db.execute("select w_tax from warehouse").fetchone()
    d_tax, o = db.execute("select d_tax, d_next_o_id from district where d_id = ?", (d,)).fetchone()
    (discount,) = db.execute("select c_discount from customer where c_d_id = ? and c_id = ?", (d, c)).fetchone()
    db.execute("update district set d_next_o_id = ? where d_id = ?", (o + 1, d))
    chosen = [generator.randrange(items) for _ in range(generator.randint(5, 15))]
    fails = generator.random() < 0.01
    db.execute("insert into orders values (?, ?, ?, ?, null, ?)", (d, o, c, time.time(), len(chosen)))
    db.execute("insert into new_order values (?, ?)", (d, o))
    for number, i in enumerate(chosen):
        if fails and number == len(chosen) - 1:
            raise Rollback
        (price,) = db.execute("select i_price from item where i_id = ?", (i,)).fetchone()
        quantity = generator.randint(1, 10)
        stock, info = db.execute("select s_quantity, s_dist from stock where s_i_id = ?", (i,)).fetchone()
        stock = stock - quantity if stock >= quantity + 10 else stock - quantity + 91
        db.execute("update stock set s_quantity = ?, s_ytd = s_ytd + ?, s_order_cnt = s_order_cnt + 1 where s_i_id = ?",
                   (stock, quantity, i))
        amount = quantity * price * (1 + tax + d_tax) * (1 - discount)
        db.execute("insert into order_line values (?, ?, ?, ?, null, ?, ?, ?)", (d, o, number, i, quantity, amount, info))
    return d, o


def payment(db, generator, items, customers):
    d, amount = generator.randrange(DISTRICTS), generator.randint(100, 500_000) / 100
    db.execute("update warehouse set w_ytd = w_ytd + ?", (amount,))
    db.execute("update district set d_ytd = d_ytd + ? where d_id = ?", (amount, d))
    c = generator.randrange(customers)
    if generator.random() < 0.6:
        rows = db.execute("select c_id from customer where c_d_id = ? and c_last = ? order by c_id", (d, last_name(c))).fetchall()
        c = rows[len(rows) // 2][0]
    db.execute("update customer set c_balance = c_balance - ?, c_ytd_payment = c_ytd_payment + ?,"
               " c_payment_cnt = c_payment_cnt + 1 where c_d_id = ? and c_id = ?", (amount, amount, d, c))
    db.execute("insert into history values (?, ?, ?, ?, ?)", (d, c, time.time(), amount, "payment"))


def order_status(db, generator, items, customers):
    d, c = generator.randrange(DISTRICTS), generator.randrange(customers)
    db.execute("select c_balance, c_last from customer where c_d_id = ? and c_id = ?", (d, c)).fetchone()
    row = db.execute("select o_id from orders where o_d_id = ? and o_c_id = ? order by o_id desc limit 1", (d, c)).fetchone()
    if row:
        db.execute("select * from order_line where ol_d_id = ? and ol_o_id = ?", (d, row[0])).fetchall()


def delivery(db, generator, items, customers):
    carrier, now = generator.randint(1, 10), time.time()
    for d in range(DISTRICTS):
        row = db.execute("select min(no_o_id) from new_order where no_d_id = ?", (d,)).fetchone()
        if row[0] is None:
            continue
        o = row[0]
        db.execute("delete from new_order where no_d_id = ? and no_o_id = ?", (d, o))
        (c,) = db.execute("select o_c_id from orders where o_d_id = ? and o_id = ?", (d, o)).fetchone()
        db.execute("update orders set o_carrier_id = ? where o_d_id = ? and o_id = ?", (carrier, d, o))
        db.execute("update order_line set ol_delivery_d = ? where ol_d_id = ? and ol_o_id = ?", (now, d, o))
        (amount,) = db.execute("select sum(ol_amount) from order_line where ol_d_id = ? and ol_o_id = ?", (d, o)).fetchone()
        db.execute("update customer set c_balance = c_balance + ?, c_delivery_cnt = c_delivery_cnt + 1"
                   " where c_d_id = ? and c_id = ?", (amount, d, c))


def stock_level(db, generator, items, customers):
    d, threshold = generator.randrange(DISTRICTS), generator.randint(10, 20)
    (o,) = db.execute("select d_next_o_id from district where d_id = ?", (d,)).fetchone()
    db.execute("select count(distinct ol_i_id) from order_line join stock on s_i_id = ol_i_id"
               " where ol_d_id = ? and ol_o_id >= ? and s_quantity < ?", (d, o - 20, threshold)).fetchone()


MIX = [(new_order, 45), (payment, 43), (order_status, 4), (delivery, 4), (stock_level, 4)]


def transact(arguments, directory, generator):
    """One transaction on a random warehouse. Returns the order that it made, if it made one."""
    warehouse = generator.randrange(arguments.warehouses)
    (kind,) = generator.choices([kind for kind, _ in MIX], [weight for _, weight in MIX])
    items, customers = int(100_000 * arguments.scale), int(3000 * arguments.scale)
    db = connect(arguments, directory, warehouse)
    try:
        # A writer takes the lock at once: two readers that both want to write would refuse each other.
        db.execute("begin" if kind in (order_status, stock_level) else "begin immediate")
        try:
            made = kind(db, generator, items, customers)
        except Rollback:
            db.execute("rollback")
            return None
        db.execute("commit")
        return [warehouse, *made] if made else None
    finally:
        db.close()


def handler(event, context):
    """The function: one transaction, which an attempt after a conflict repeats."""
    arguments = argparse.Namespace(**event)
    return transact(arguments, arguments.directories[0], random.Random(arguments.seed))


class Function:
    """Transactions by a function, over one connection."""

    def __init__(self, arguments):
        url = urllib.parse.urlsplit(arguments.function)
        self.connection = http.client.HTTPConnection(url.netloc, timeout=60)
        self.path = url.path
        kept = ("warehouses", "scale", "journal", "sync", "timeout")
        self.event = {name: getattr(arguments, name) for name in kept} | {"directories": [arguments.at]}

    def transact(self, generator):
        self.connection.request("POST", self.path, json.dumps(self.event | {"seed": generator.getrandbits(32)}))
        answer = self.connection.getresponse()
        document = json.loads(answer.read())
        if answer.status != 200 or answer.getheader("X-Amz-Function-Error"):
            raise RuntimeError(f"{answer.status}: {document}")
        return document


def client(arguments, number, barrier, results):
    directory = arguments.directories[number % len(arguments.directories)]
    generator = random.Random(arguments.seed * 1000 + number)
    orders, transactions, errors, busy, first = [], 0, 0, 0, None
    function = Function(arguments) if arguments.function else None
    # So that the function is warm.
    order = function.transact(generator) if function else transact(arguments, directory, generator)
    orders += [order] if order else []
    early = len(orders)
    barrier.wait()
    end = time.monotonic() + arguments.seconds
    while time.monotonic() < end:
        try:
            order = function.transact(generator) if function else transact(arguments, directory, generator)
            transactions += 1
            if order:
                orders.append(order)
        except Exception as error:  # data of a broken file system break more than SQLite
            if "locked" in str(error):
                busy += 1
            else:
                errors += 1
                first = first or str(error)
    results.put((orders, errors, busy, first, transactions, early))


def run(arguments):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(arguments.clients + 1), context.Queue()
    clients = [context.Process(target=client, args=(arguments, number, barrier, results)) for number in range(arguments.clients)]
    for process in clients:
        process.start()
    barrier.wait()
    begun = time.monotonic()
    reports = [results.get() for _ in clients]
    elapsed = time.monotonic() - begun
    for process in clients:
        process.join()
    orders = [order for report in reports for order in report[0]]
    print(json.dumps({
        "tpmc": (len(orders) - sum(report[5] for report in reports)) * 60 / elapsed,
        "transactions": sum(report[4] for report in reports),
        "errors": sum(report[1] for report in reports),
        "busy": sum(report[2] for report in reports),
        "first": next((report[3] for report in reports if report[3]), None),
        "wrong": check(arguments, orders),
    }))


def check(arguments, orders):
    """Descriptions of all conditions that do not hold, as the last mount shows the files."""
    wrong = []
    for warehouse in range(arguments.warehouses):
        mine = [(d, o) for home, d, o in orders if home == warehouse]
        try:
            db = sqlite3.connect(path_of(arguments.directories[-1], warehouse), timeout=30)
            wrong += [f"warehouse {warehouse}: {name}" for name in check_warehouse(db, mine)]
            db.close()
        except sqlite3.Error as error:
            wrong.append(f"warehouse {warehouse}: {error}")
    return wrong


def check_warehouse(db, orders):
    wrong = []
    one = lambda query, *values: db.execute(query, values).fetchone()
    expect = lambda name, holds: None if holds else wrong.append(name)
    expect("integrity_check", one("pragma integrity_check")[0] == "ok")
    expect("condition 1: w_ytd", abs(one("select w_ytd from warehouse")[0] - one("select sum(d_ytd) from district")[0]) < 0.01)
    for d in range(DISTRICTS):
        (next_id,) = one("select d_next_o_id from district where d_id = ?", d)
        (last,) = one("select max(o_id) from orders where o_d_id = ?", d)
        count, low, high = one("select count(*), min(no_o_id), max(no_o_id) from new_order where no_d_id = ?", d)
        expect(f"condition 2 in district {d}", last == next_id - 1 and high in (None, last))
        expect(f"condition 3 in district {d}", count == 0 or high - low + 1 == count)
        (counted,) = one("select sum(o_ol_cnt) from orders where o_d_id = ?", d)
        (lines,) = one("select count(*) from order_line where ol_d_id = ?", d)
        expect(f"condition 4 in district {d}", counted == lines)
    there = set(db.execute("select o_d_id, o_id from orders"))
    expect("an acknowledged order is absent", there.issuperset(orders))
    expect("two acknowledged orders have one number", len(set(orders)) == len(orders))
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["load", "run"])
    parser.add_argument("directories", nargs="+", help="the mounts; client n uses mount n modulo their number")
    parser.add_argument("--warehouses", type=int, default=4)
    parser.add_argument("--scale", type=float, default=0.02)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--journal", default="delete")
    parser.add_argument("--sync", default="normal")
    parser.add_argument("--timeout", type=float, default=30, help="seconds that a locked database is waited for")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--function", help="the URL of a function that runs each transaction")
    parser.add_argument("--at", default="/mnt/data/tpcc", help="the directory as the function sees it")
    arguments = parser.parse_args()
    if arguments.action == "load":
        load(arguments)
    else:
        run(arguments)


if __name__ == "__main__":
    main()
