require("./circularB"); exports.handler = async () => require("./circularB").name;
