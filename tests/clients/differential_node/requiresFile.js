require("./no-such-file"); exports.handler = async () => 1;
