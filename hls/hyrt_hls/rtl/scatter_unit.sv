// Multiplies the weight of its edge by the chunk's value, and holds the message in one register until the queue of the
// row's bank accepts it.
module scatter_unit #(
    parameter int PES = 4,
    parameter int ROW_BITS = 16,
    parameter int CHUNK_BITS = 8,
    parameter int VALUE_BITS = 32
) (
    input  logic clk,
    input  logic rst,
    input  logic offered,
    output logic takes,
    input  logic [ROW_BITS - 1:0] row,
    input  logic [CHUNK_BITS - 1:0] chunk,
    input  logic [VALUE_BITS - 1:0] weight,
    input  logic [VALUE_BITS - 1:0] feature,
    input  logic [PES - 1:0] full,
    output logic [PES - 1:0] push,
    output logic [ROW_BITS + CHUNK_BITS + VALUE_BITS - 1:0] message,
    output logic busy
);
    localparam int BANK_BITS = $clog2(PES);

    logic valid;
    logic [ROW_BITS - 1:0] held_row;
    logic [CHUNK_BITS - 1:0] held_chunk;
    logic [VALUE_BITS - 1:0] held_value;
    logic [BANK_BITS - 1:0] bank;

    assign bank = held_row[BANK_BITS - 1:0];
    assign message = {held_row, held_chunk, held_value};
    assign busy = valid;

    always_comb begin
        push = '0;
        push[bank] = valid && !full[bank];
    end

    assign takes = offered && (!valid || push[bank]);

    always_ff @(posedge clk) begin
        if (rst) valid <= 1'b0;
        else if (takes) begin
            valid <= 1'b1;
            held_row <= row;
            held_chunk <= chunk;
            held_value <= weight * feature;
        end else if (push[bank]) valid <= 1'b0;
    end
endmodule
