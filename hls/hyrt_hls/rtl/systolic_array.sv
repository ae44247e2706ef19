// Output stationary array: element (r, c) sums a[r] * b[c] of its tile. Operands come unskewed, one step k of all rows and columns a
// cycle; delay lines at the edges hold them back by r and by c cycles. `first` and `last` mark a tile's first and last step and travel with
// the operands; tiles may follow each other without a gap. The twin of hyrt_perfmodel/cycles/systolic.py. Values are whole numbers.
module systolic_array #(
    parameter int ROWS = 4,
    parameter int COLS = 4,
    parameter int VALUE_BITS = 32
) (
    input  logic clk,
    input  logic rst,
    input  logic valid,
    input  logic first,
    input  logic last,
    input  logic [ROWS - 1:0][VALUE_BITS - 1:0] a,
    input  logic [COLS - 1:0][VALUE_BITS - 1:0] b,
    // Of each element: its tile's sum is complete since the last clock edge, and stays until the next tile's.
    output logic [ROWS - 1:0][COLS - 1:0] complete,
    output logic [ROWS - 1:0][COLS - 1:0][VALUE_BITS - 1:0] sums
);
    localparam int STEP_BITS = VALUE_BITS + 3;

    // What enters element (r, c) from the left, with its flags, and from above.
    logic [ROWS - 1:0][COLS - 1:0][STEP_BITS - 1:0] right;
    logic [ROWS - 1:0][COLS - 1:0][VALUE_BITS - 1:0] down;

    for (genvar r = 0; r < ROWS; r++) begin : left_edge
        logic [r:0][STEP_BITS - 1:0] line;
        assign line[0] = {valid, first, last, a[r]};
        assign right[r][0] = line[r];
        for (genvar i = 1; i <= r; i++) begin : delay
            always_ff @(posedge clk) line[i] <= rst ? '0 : line[i - 1];
        end
    end

    for (genvar c = 0; c < COLS; c++) begin : upper_edge
        logic [c:0][VALUE_BITS - 1:0] line;
        assign line[0] = b[c];
        assign down[0][c] = line[c];
        for (genvar i = 1; i <= c; i++) begin : delay
            always_ff @(posedge clk) line[i] <= rst ? '0 : line[i - 1];
        end
    end

    for (genvar r = 0; r < ROWS; r++) begin : row
        for (genvar c = 0; c < COLS; c++) begin : column
            logic here, begins, ends;
            logic [VALUE_BITS - 1:0] factor, sum, added;

            assign {here, begins, ends, factor} = right[r][c];
            assign added = (begins ? '0 : sum) + factor * down[r][c];

            always_ff @(posedge clk) begin
                complete[r][c] <= !rst && here && ends;
                if (here) sum <= added;
                if (here && ends) sums[r][c] <= added;
            end
            if (c + 1 < COLS) begin : rightwards
                always_ff @(posedge clk) right[r][c + 1] <= rst ? '0 : right[r][c];
            end
            if (r + 1 < ROWS) begin : downwards
                always_ff @(posedge clk) down[r + 1][c] <= rst ? '0 : down[r][c];
            end
        end
    end
endmodule
